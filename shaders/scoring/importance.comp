// importance: best[j, t] = max over the heads (and, called layer by layer, over the layers) of the pooled softmax rows.
//
//   0  step  [..]            u32  in      num_queries, prompt_keys = T
//   1  rows  [Q, H, stride]  f32  in      softmax rows
//   2  best  [Q, stride]     f32  in out  FIRST: the maximum starts here
//
// Rows are not negative, and of such numbers the bits are in the same order: as integers infinity and NaN are above all others, while
// the maximum of floats may drop a NaN.
//
// pool: average over the POOL keys centred on t, of those that lie in 0 .. T - 1. Grid: (ceil(keys / LOCAL_SIZE), Q, 1).
// Source: Speculative Prefill, Liu, Chen & Zhang 2025 (arXiv 2502.02789). Reference: vkprefill/selection.py, pool.
#version 450
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint H = 8;
layout(constant_id = 2) const uint POOL = 13;  // odd
layout(constant_id = 3) const uint FIRST = 1;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer Rows { float rows[]; };
layout(binding = 2) buffer Best { float best[]; };

layout(push_constant) uniform Push { uint stride; };  // of a row

void main() {
    const uint t = gl_GlobalInvocationID.x, j = gl_WorkGroupID.y, num_keys = step[PROMPT_KEYS];
    if (j >= step[NUM_QUERIES] || t >= num_keys) return;
    const uint begin = t - min(t, POOL / 2u), end = min(t + POOL / 2u + 1u, num_keys);
    uint top = FIRST != 0u ? 0u : floatBitsToUint(best[j * stride + t]);
    for (uint h = 0; h < H; h++) {
        float sum = 0.0;
        for (uint s = begin; s < end; s++) sum += rows[(j * H + h) * stride + s];
        top = max(top, floatBitsToUint(sum / float(end - begin)));
    }
    best[j * stride + t] = uintBitsToFloat(top);
}
