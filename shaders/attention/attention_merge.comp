// attention_merge: the softmax over all keys from the softmax of each split of the keys.
//
//   0  step  [..]                u32   in   num_tokens, cache_len
//   1  ys    [SPLITS, T, H, Dh]  f32   in   from attention
//   2  part  [SPLITS, T, H]      vec2  in   (maximum, sum of exponentials) of each split
//   3  y     [T, H, Dh]          f32   out
//
// Only splits of which the token sees a key count, the first ones: tile i of TILE keys is in split i % SPLITS.
//
// Grid: (ceil(Dh / LOCAL_SIZE), H, T). Source: online softmax, Milakov & Gimelshein 2018 (arXiv 1805.02867).
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint H = 8;
layout(constant_id = 2) const uint Dh = 256;
layout(constant_id = 3) const uint SPLITS = 8;
layout(constant_id = 4) const uint TILE = 64;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer Ys { float ys[]; };
layout(binding = 2) readonly buffer Part { vec2 part[]; };
layout(binding = 3) writeonly buffer Y { float y[]; };

const uint AHEAD = 8u;  // splits whose values are on their way together

void main() {
    const uint t = gl_WorkGroupID.z, num_tokens = step[NUM_TOKENS], d = gl_GlobalInvocationID.x;
    if (t >= num_tokens || d >= Dh) return;
    const uint row = t * H + gl_WorkGroupID.y, stride = num_tokens * H;
    const uint splits = min(SPLITS, (step[CACHE_LEN] + t) / TILE + 1u);
    float best = part[row].x;
    for (uint i = 1; i < splits; i++) best = max(best, part[i * stride + row].x);
    float total = 0.0, sum = 0.0;
    [[dont_unroll]] for (uint first = 0; first < splits; first += AHEAD) {
        float v[AHEAD];
        vec2 p[AHEAD];
        [[unroll]] for (uint i = 0; i < AHEAD; i++) {
            const uint at = min(first + i, splits - 1u) * stride + row;
            v[i] = ys[at * Dh + d];
            p[i] = part[at];
        }
        [[unroll]] for (uint i = 0; i < AHEAD; i++) {
            if (first + i >= splits) break;
            const float weight = p[i].y * exp(p[i].x - best);
            total += weight;
            sum += v[i] * weight;
        }
    }
    y[row * Dh + d] = sum / total;
}
