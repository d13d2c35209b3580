// rms_norm: y[t, i] = x[t, i] * weight[i] / sqrt(mean_i(x[t, i]^2) + EPS)
//
//   0  step    [..]    u32  in   num_tokens
//   1  x       [T, D]  f32  in
//   2  weight  [..]    f32  in   at weight_offset [D], as stored in the file: the converter already added 1
//   3  y       [T, D]  f32  out  LAST_ROW: [1, D], of the last token only
//
// HALF: y as halves too, for products in half precision (include/half_row.glsl), without LAST_ROW:
//
//   4  halves   [T', D / 2]  u32  out
//   5  factors  [T]          f32  out
//
// Grid: (T, 1, 1), one workgroup for each row; LAST_ROW: (1, 1, 1). Needs D % 4 = 0. The sum of squares is kept in f32.
// Source: RMSNorm, Zhang & Sennrich 2019 (arXiv 1910.07467). Reference: tests/reference/norm.py, rms_norm.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint D = 1024;
layout(constant_id = 2) const float EPS = 1e-6;
#ifdef HALF
const uint LAST_ROW = 0u;
#else
layout(constant_id = 3) const uint LAST_ROW = 0;
#endif
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer X { vec4 x[]; };
layout(binding = 2) readonly buffer Weight { vec4 weight[]; };
layout(binding = 3) writeonly buffer Y { vec4 y[]; };

layout(push_constant) uniform Push { uint weight_offset; };  // a multiple of 4

#ifdef HALF
#define WIDTH D
#define HALVES 4
#define FACTORS 5
#include "half_row.glsl"
#else
#include "reduce.glsl"
#endif

void main() {
    const uint num_tokens = step[NUM_TOKENS];
    if (gl_WorkGroupID.x >= num_tokens) return;
    const uint from = (LAST_ROW != 0u ? num_tokens - 1u : gl_WorkGroupID.x) * (D / 4u), to = gl_WorkGroupID.x * (D / 4u);

    float sum = 0.0;
    for (uint i = gl_LocalInvocationID.x; i < D / 4u; i += LOCAL_SIZE) sum += dot(x[from + i], x[from + i]);
    const float scale = inversesqrt(workgroup_sum(sum) / float(D) + EPS);
#ifdef HALF
    vec4 row[KEPT];
    [[unroll]] for (uint k = 0; k < KEPT; k++) {
        const uint i = k * LOCAL_SIZE + gl_LocalInvocationID.x;
        row[k] = vec4(0.0);
        if (i >= D / 4u) continue;
        row[k] = x[from + i] * scale * weight[weight_offset / 4u + i];
        y[to + i] = row[k];
    }
    store_half_row(gl_WorkGroupID.x, row);
#else
    for (uint i = gl_LocalInvocationID.x; i < D / 4u; i += LOCAL_SIZE) y[to + i] = x[from + i] * scale * weight[weight_offset / 4u + i];
#endif
}
