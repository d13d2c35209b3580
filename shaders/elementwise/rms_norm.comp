// rms_norm: y[t, i] = x[t, i] * weight[i] / sqrt(mean_i(x[t, i]^2) + EPS)
//
//   0  step    [..]    u32  in   num_tokens
//   1  x       [T, D]  f32  in
//   2  weight  [..]    f32  in   at weight_offset [D], as stored in the file: the converter already added 1
//   3  y       [T, D]  f32  out  LAST_ROW: [1, D], of the last token only
//
// Grid: (T, 1, 1), one workgroup for each row; LAST_ROW: (1, 1, 1). Needs D % 4 = 0. The sum of squares is kept in f32.
// Source: RMSNorm, Zhang & Sennrich 2019 (arXiv 1910.07467). Reference: tests/reference/norm.py, rms_norm.
#version 450
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint D = 1024;
layout(constant_id = 2) const float EPS = 1e-6;
layout(constant_id = 3) const uint LAST_ROW = 0;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer X { vec4 x[]; };
layout(binding = 2) readonly buffer Weight { vec4 weight[]; };
layout(binding = 3) writeonly buffer Y { vec4 y[]; };

layout(push_constant) uniform Push { uint weight_offset; };  // a multiple of 4

#include "reduce.glsl"

void main() {
    const uint num_tokens = step[NUM_TOKENS];
    if (gl_WorkGroupID.x >= num_tokens) return;
    const uint from = (LAST_ROW != 0u ? num_tokens - 1u : gl_WorkGroupID.x) * (D / 4u), to = gl_WorkGroupID.x * (D / 4u);

    float sum = 0.0;
    for (uint i = gl_LocalInvocationID.x; i < D / 4u; i += LOCAL_SIZE) sum += dot(x[from + i], x[from + i]);
    const float scale = inversesqrt(workgroup_sum(sum) / float(D) + EPS);
    for (uint i = gl_LocalInvocationID.x; i < D / 4u; i += LOCAL_SIZE) y[to + i] = x[from + i] * scale * weight[weight_offset / 4u + i];
}
