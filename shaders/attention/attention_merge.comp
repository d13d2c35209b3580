// attention_merge: the softmax over all keys from the softmax of each split of the keys.
//
//   0  step  [..]                u32   in   num_tokens
//   1  ys    [SPLITS, T, H, Dh]  f32   in   from attention
//   2  part  [SPLITS, T, H]      vec2  in   (maximum, sum of exponentials) of each split
//   3  y     [T, H, Dh]          f32   out
//
// Grid: (H, T, 1). Source: online softmax, Milakov & Gimelshein 2018 (arXiv 1805.02867).
#version 450
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint H = 8;
layout(constant_id = 2) const uint Dh = 256;
layout(constant_id = 3) const uint SPLITS = 8;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer Ys { float ys[]; };
layout(binding = 2) readonly buffer Part { vec2 part[]; };
layout(binding = 3) writeonly buffer Y { float y[]; };

void main() {
    const uint num_tokens = step[NUM_TOKENS], row = gl_WorkGroupID.y * H + gl_WorkGroupID.x, stride = num_tokens * H;
    if (gl_WorkGroupID.y >= num_tokens) return;
    float best = part[row].x;
    for (uint i = 1; i < SPLITS; i++) best = max(best, part[i * stride + row].x);
    float total = 0.0;
    for (uint i = 0; i < SPLITS; i++) total += part[i * stride + row].y * exp(part[i * stride + row].x - best);
    for (uint d = gl_LocalInvocationID.x; d < Dh; d += LOCAL_SIZE) {
        float sum = 0.0;
        for (uint i = 0; i < SPLITS; i++) {
            const vec2 p = part[i * stride + row];
            sum += ys[(i * stride + row) * Dh + d] * (p.y * exp(p.x - best));
        }
        y[row * Dh + d] = sum / total;
    }
}
