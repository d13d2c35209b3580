// l2_norm: each head u of the queries and keys becomes u / sqrt(sum(u^2) + EPS); queries are also divided by sqrt(Dk).
//
//   0  step  [..]    u32  in      num_tokens
//   1  qkv   [T, C]  f32  in out  a row: Hk query heads, Hk key heads (Dk values each), then the values, which stay
//
// Grid: (2 Hk, T, 1), one workgroup for each head. EPS stands inside the root, beside the sum. Reference: tests/reference/norm.py.
#version 450
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 0) const uint LOCAL_SIZE = 32;
layout(constant_id = 1) const uint C = 6144;
layout(constant_id = 2) const uint Hk = 16;
layout(constant_id = 3) const uint Dk = 128;
layout(constant_id = 4) const float EPS = 1e-6;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) buffer QKV { vec4 qkv[]; };

#include "reduce.glsl"

void main() {
    const uint h = gl_WorkGroupID.x, t = gl_WorkGroupID.y;
    if (t >= step[NUM_TOKENS]) return;
    const uint at = (t * C + h * Dk) / 4u;
    float sum = 0.0;
    for (uint i = gl_LocalInvocationID.x; i < Dk / 4u; i += LOCAL_SIZE) sum += dot(qkv[at + i], qkv[at + i]);
    const float scale = inversesqrt(workgroup_sum(sum) + EPS) * (h < Hk ? inversesqrt(float(Dk)) : 1.0);
    for (uint i = gl_LocalInvocationID.x; i < Dk / 4u; i += LOCAL_SIZE) qkv[at + i] *= scale;
}
