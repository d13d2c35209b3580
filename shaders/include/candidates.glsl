// Candidates: tokens with their logits, in falling order of logit, equal logits by rising id. Logits that are not finite come before all
// others, so that they are seen however few candidates are asked for.
// V, step, logits and seen are the including shader's.
#include "finite.glsl"

struct Candidate {
    uint rank;  // falls with the logit
    uint bits;  // of the logit
    uint id;
};

const Candidate START = Candidate(~0u, 0u, 0u);           // before every candidate
const Candidate NONE = Candidate(0u, 0xff800000u, ~0u);  // after every candidate: minus infinity, no token

Candidate candidate(float logit, uint id) {
    const uint bits = floatBitsToUint(logit);
    uint rank = (bits >> 31) != 0u ? ~bits : bits | 0x80000000u;
    if ((bits << 1) == 0u) rank = 0x80000000u;  // zeros of both signs are equal
    return Candidate(is_finite(logit) ? rank : ~0u - 1u, bits, id);
}

// In buffers a candidate is uvec2(bits of the logit, id): an id passed as a float would be a denormal, which a device may flush.
uvec2 pack(Candidate c) { return uvec2(c.bits, c.id); }
Candidate unpack(uvec2 w) { return w.y == NONE.id ? NONE : candidate(uintBitsToFloat(w.x), w.y); }

bool before(Candidate a, Candidate b) { return a.rank > b.rank || (a.rank == b.rank && a.id < b.id); }

// The first candidate of block b (64 tokens) that comes after `last`; NONE when there is none.
Candidate best_below(uint b, Candidate last) {
    Candidate found = NONE;
    for (uint i = b * 64u; i < min(b * 64u + 64u, V); i++) {
        const float seen_before = float((seen[i >> 5] >> (i & 31u)) & 1u);
        const Candidate next = candidate(logits[i] - uintBitsToFloat(step[PENALTY]) * seen_before, i);
        if (before(last, next) && before(next, found)) found = next;
    }
    return found;
}
