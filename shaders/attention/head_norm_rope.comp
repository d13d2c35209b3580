// head_norm_rope: RMS norm over each head, then rotary on its first R values.
//
//   0  step    [..]         u32   in   num_tokens
//   1  x       [T, STRIDE]  f32   in   head h starts at h * HEAD_STRIDE of a row
//   2  weight  [..]         f32   in   at weight_offset [Dh]
//   3  rope    [T, R / 2]   vec2  in   (cos, sin) of position * theta^(-2i / R), made on the host in float64
//   4  y       [T, HEADS, Dh]  f32  out
//      HALF:   [T, HEADS, Dh / 2]  u32  out  halves, two in a word: times FACTOR, rounded to nearest
//
// Pairs are (i, i + R / 2), i < R / 2 (NEOX): (a, b) -> (a cos - b sin, a sin + b cos); values R.. pass through.
// HALF: the queries of products of halves, FACTOR being the scale of scores, Dh^-1/2. After the norm no value is more than Dh^1/2 times the
// greatest weight, the rotary adds a factor of 2^1/2 at most: halves, up to 65,504, hold them whatever the activations are, as long as the
// norm's weights are below 46,000. What is more, or not finite, becomes NaN. A query's root mean square is then that of the weights times
// Dh^-1/2, far above 2^-14, below which halves lose bits. Needs Dh % 4 = 0.
//
// Grid: (HEADS, T, 1), one workgroup for each head. Source: RoFormer, Su et al. 2021 (arXiv 2104.09864).
// Reference: tests/reference/norm.py and rope.py.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint LOCAL_SIZE = 32;
layout(constant_id = 1) const uint HEADS = 8;
layout(constant_id = 2) const uint Dh = 256;
layout(constant_id = 3) const uint R = 64;
layout(constant_id = 4) const uint STRIDE = 4096;
layout(constant_id = 5) const uint HEAD_STRIDE = 512;
layout(constant_id = 6) const float EPS = 1e-6;
#ifdef HALF
layout(constant_id = 7) const float FACTOR = 0.0625;
#endif
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer X { float x[]; };
layout(binding = 2) readonly buffer Weight { float weight[]; };
layout(binding = 3) readonly buffer Rope { vec2 rope[]; };
#ifdef HALF
#include "halves.glsl"
layout(binding = 4) writeonly buffer Y { uvec2 y[]; };
#else
layout(binding = 4) writeonly buffer Y { float y[]; };
#endif

layout(push_constant) uniform Push { uint weight_offset; };

#include "reduce.glsl"

void main() {
    const uint h = gl_WorkGroupID.x, t = gl_WorkGroupID.y, lane = gl_LocalInvocationID.x;
    if (t >= step[NUM_TOKENS]) return;
    const uint from = t * STRIDE + h * HEAD_STRIDE, to = (t * HEADS + h) * Dh, w = weight_offset;

    float sum = 0.0;
    for (uint i = lane; i < Dh; i += LOCAL_SIZE) sum += x[from + i] * x[from + i];
    const float scale = inversesqrt(workgroup_sum(sum) / float(Dh) + EPS);

#ifdef HALF
    // Neighbours share a word, wherever the pairs of the rotary lie: each value is worked out by itself.
    for (uint four = lane; four < Dh / 4u; four += LOCAL_SIZE) {
        vec4 v;
        [[unroll]] for (uint e = 0; e < 4u; e++) {
            const uint i = four * 4u + e, other = i < R / 2u ? i + R / 2u : i - R / 2u;
            v[e] = x[from + i] * scale * weight[w + i];
            if (i < R) {
                const vec2 cs = rope[t * (R / 2u) + min(i, other)];
                const float b = x[from + other] * scale * weight[w + other];
                v[e] = v[e] * cs.x + (i < other ? -b : b) * cs.y;
            }
        }
        y[to / 4u + four] = pack_halves(v * FACTOR);
    }
#else
    for (uint i = lane; i < R / 2u; i += LOCAL_SIZE) {
        const float a = x[from + i] * scale * weight[w + i], b = x[from + i + R / 2u] * scale * weight[w + i + R / 2u];
        const vec2 cs = rope[t * (R / 2u) + i];
        y[to + i] = a * cs.x - b * cs.y;
        y[to + i + R / 2u] = a * cs.y + b * cs.x;
    }
    for (uint i = R + lane; i < Dh; i += LOCAL_SIZE) y[to + i] = x[from + i] * scale * weight[w + i];
#endif
}
