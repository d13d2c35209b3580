// The step buffer, at binding 0: what a recorded program is told anew before each run. A word each, in the order of
// vkprefill/engine/step.py.
layout(binding = 0) readonly buffer Step {
    uint num_tokens;      // T of this run, at most what the program was recorded for
    uint cache_len;       // keys in the cache before it
    float penalty;        // what the logits of seen tokens are lowered by
    uint num_candidates;  // k, the best tokens to find
    uint num_queries;     // Q, whose softmax rows are written
    uint num_keys;        // S, of such a row
    uint prompt_keys;     // of them those whose importance is summed
} step;
