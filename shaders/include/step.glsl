// The step buffer, at binding 0: what a recorded program is told anew before each run. Names and places of the words are those of
// vkprefill/engine/step.py. A shader that tells the next row of its own program something defines STEP_ACCESS as nothing.
#ifndef STEP_ACCESS
#define STEP_ACCESS readonly
#endif
layout(binding = 0) STEP_ACCESS buffer Step { uint step[]; };

const uint NUM_TOKENS = 0u;      // T of this run, at most what the program was recorded for
const uint CACHE_LEN = 1u;       // keys in the cache before it
const uint PENALTY = 2u;         // bits of the float that the logits of seen tokens are lowered by
const uint NUM_CANDIDATES = 3u;  // k, the best tokens to find
const uint NUM_QUERIES = 4u;     // Q, whose softmax rows are written
const uint NUM_KEYS = 5u;        // S, of such a row
const uint PROMPT_KEYS = 6u;     // of them those whose importance is summed
const uint WAITING = 7u;         // rows of the run before that are accepted and not yet part of the recurrent states
const uint KEPT_ROW = 8u;        // where delta-net layers keep the rows of this run; see kept_rows.glsl
