// Candidates as vec2(logit, bits of the token id), in falling order of logit, equal logits by rising id.
// V, step_words, logits and seen are the including shader's.
const vec2 START = vec2(1.0 / 0.0, 0.0);  // before every candidate: nothing is above infinity
const float NO_MORE = -1.0 / 0.0;

bool before(vec2 a, vec2 b) { return a.x > b.x || (a.x == b.x && floatBitsToUint(a.y) < floatBitsToUint(b.y)); }

// The first candidate of block b (64 tokens) that comes after `last`; logit NO_MORE when there is none.
vec2 best_below(uint b, vec2 last) {
    const float penalty = uintBitsToFloat(step_words[2]);
    vec2 found = vec2(NO_MORE, uintBitsToFloat(~0u));
    for (uint i = b * 64u; i < min(b * 64u + 64u, V); i++) {
        const float seen_before = float((seen[i >> 5] >> (i & 31u)) & 1u);
        const vec2 candidate = vec2(logits[i] - penalty * seen_before, uintBitsToFloat(i));
        if (before(last, candidate) && before(candidate, found)) found = candidate;
    }
    return found;
}
