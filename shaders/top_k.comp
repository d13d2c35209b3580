// top_k: the k best tokens from the best of each block: take the best, replace it by the next of its block, k times.
//
//   0  step        [..]      u32   in      word 2 = presence penalty (bits of a float), word 3 = k
//   1  logits      [V]       f32   in
//   2  seen        [V / 32]  u32   in
//   3  best        [V / 64]  vec2  in out  from top_k_blocks
//   4  candidates  [k]       vec2  out     (logit, bits of the token id), best first
//
// Grid: (1, 1, 1). Every block belongs to one invocation, which alone reads and writes its entry of `best`.
// Not-a-number logits are never chosen; the host checks for missing candidates.
#version 450
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint V = 248320;
layout(local_size_x_id = 0) in;

layout(binding = 0) readonly buffer Step { uint step_words[]; };
layout(binding = 1) readonly buffer Logits { float logits[]; };
layout(binding = 2) readonly buffer Seen { uint seen[]; };
layout(binding = 3) buffer Best { vec2 best[]; };
layout(binding = 4) writeonly buffer Candidates { vec2 candidates[]; };

#include "candidates.glsl"

shared vec2 mine[LOCAL_SIZE];

void main() {
    const uint lane = gl_LocalInvocationID.x, blocks = (V + 63u) / 64u, k = step_words[3];
    vec2 own = vec2(NO_MORE, uintBitsToFloat(~0u));
    for (uint b = lane; b < blocks; b += LOCAL_SIZE) if (before(best[b], own)) own = best[b];
    for (uint n = 0; n < k; n++) {
        mine[lane] = own;
        barrier();
        vec2 top = mine[0];
        for (uint i = 1; i < LOCAL_SIZE; i++) if (before(mine[i], top)) top = mine[i];
        barrier();
        if (lane == 0u) candidates[n] = top;
        const uint b = floatBitsToUint(top.y) / 64u;
        if (b < blocks && b % LOCAL_SIZE == lane) {
            best[b] = best_below(b, top);
            own = vec2(NO_MORE, uintBitsToFloat(~0u));
            for (uint i = lane; i < blocks; i += LOCAL_SIZE) if (before(best[i], own)) own = best[i];
        }
    }
}
