// Candidates: tokens with their logits, in falling order of logit, equal logits by rising id.
// V, step, logits and seen are the including shader's.
struct Candidate {
    float logit;
    uint id;
};

const Candidate START = Candidate(1.0 / 0.0, 0u);   // before every candidate: nothing is above infinity
const Candidate NONE = Candidate(-1.0 / 0.0, ~0u);  // after every candidate

// In buffers a candidate is uvec2(bits of the logit, id): an id passed as a float would be a denormal, which a device may flush.
uvec2 pack(Candidate c) { return uvec2(floatBitsToUint(c.logit), c.id); }
Candidate unpack(uvec2 w) { return Candidate(uintBitsToFloat(w.x), w.y); }

bool before(Candidate a, Candidate b) { return a.logit > b.logit || (a.logit == b.logit && a.id < b.id); }

// The first candidate of block b (64 tokens) that comes after `last`; NONE when there is none.
Candidate best_below(uint b, Candidate last) {
    const float penalty = uintBitsToFloat(step[PENALTY]);
    Candidate found = NONE;
    for (uint i = b * 64u; i < min(b * 64u + 64u, V); i++) {
        const float seen_before = float((seen[i >> 5] >> (i & 31u)) & 1u);
        const Candidate candidate = Candidate(logits[i] - penalty * seen_before, i);
        if (before(last, candidate) && before(candidate, found)) found = candidate;
    }
    return found;
}
