// Candidates: tokens with their logits, in falling order of logit, equal logits by rising id. Logits that are not finite come before all
// others, so that they are seen however few candidates are asked for.
// V, step, logits, seen, token_ids and allowed are the including shader's.
#include "finite.glsl"

const uint BLOCKS = (V + 63u) / 64u;  // of 64 tokens

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

// Which of the 32 tokens from 32 w on are lowered by the penalty in this row, as bits: those seen, and those that the run has up to the row.
uint lowered(uint row, uint w) {
    uint bits = seen[w];
    for (uint i = 1u; i <= row; i++) if (token_ids[i] >> 5 == w) bits |= 1u << (token_ids[i] & 31u);
    return bits;
}

// Which of the 32 tokens from 32 w on may be candidates of this row, as bits. The first word of `allowed` says whether the others count.
uint permitted(uint row, uint w) { return allowed[0] == 0u ? ~0u : allowed[1u + row * ((V + 31u) / 32u) + w]; }

// The first candidate of block b of a row that comes after `last`; NONE when there is none.
Candidate best_below(uint row, uint b, Candidate last) {
    Candidate found = NONE;
    uint bits = 0u, may = 0u;
    for (uint i = b * 64u; i < min(b * 64u + 64u, V); i++) {
        if ((i & 31u) == 0u) {
            bits = lowered(row, i >> 5);
            may = permitted(row, i >> 5);
        }
        const float is_lowered = float((bits >> (i & 31u)) & 1u);
        const Candidate next = candidate(logits[row * V + i] - uintBitsToFloat(step[PENALTY]) * is_lowered, i);
        // what is not finite must be seen, wherever it is
        const bool counts = ((may >> (i & 31u)) & 1u) != 0u || !is_finite(uintBitsToFloat(next.bits));
        if (counts && before(last, next) && before(next, found)) found = next;
    }
    return found;
}
