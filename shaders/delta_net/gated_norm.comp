// gated_norm: o[t, h] = rms_norm(o[t, h]) * weight * silu(z[t, h]) for each value head of the delta net.
//
//   0  step    [..]         u32  in      num_tokens
//   1  z       [T, Hv, Dv]  f32  in
//   2  weight  [..]         f32  in      at weight_offset [Dv]
//   3  o       [T, Hv, Dv]  f32  in out
//
// HALF: the result as halves instead, for products in half precision (include/half_row.glsl); o stays as it is:
//
//   4  halves   [T', Hv * Dv / 2]  u32  out
//   5  factors  [T]                f32  out
//
// Grid: (Hv, T, 1), one workgroup for each head; HALF: (1, T, 1), one for all. Needs Dv % 4 = 0; HALF: Dv / 4 a power of two, of which
// LOCAL_SIZE is a multiple, below twice a row's vec4. Heads side by side, as many as that has room for, so that registers hold the rest.
// Order: norm, weight, gate. Reference: tests/reference/norm.py, activations.py.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint LOCAL_SIZE = 32;
layout(constant_id = 1) const uint Hv = 16;
layout(constant_id = 2) const uint Dv = 128;
layout(constant_id = 3) const float EPS = 1e-6;
#ifdef HALF
layout(constant_id = 4) const uint LEAST_SUBGROUP = 1;  // of the device
#endif
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer Z { vec4 z[]; };
layout(binding = 2) readonly buffer Weight { vec4 weight[]; };
#ifdef HALF
layout(binding = 3) readonly buffer O { vec4 o[]; };
#define WIDTH (Hv * Dv)
#define HALVES 4
#define FACTORS 5
#define LANES (Dv / 4u)  // a head's
#include "half_row.glsl"
#include "lanes.glsl"
#else
layout(binding = 3) buffer O { vec4 o[]; };
#include "reduce.glsl"
#endif

layout(push_constant) uniform Push { uint weight_offset; };  // a multiple of 4

#include "activations.glsl"

void main() {
    const uint t = gl_WorkGroupID.y;
    if (t >= step[NUM_TOKENS]) return;
#ifdef HALF
    const uint lane = gl_LocalInvocationID.x, from = t * (WIDTH / 4u);
    const vec4 w = weight[weight_offset / 4u + lane % LANES];
    vec4 row[KEPT];
    [[unroll]] for (uint k = 0; k < KEPT; k++) {
        const uint c = k * LOCAL_SIZE + lane, i = from + (c < WIDTH / 4u ? c : c - WIDTH / 4u);  // past the end the first again
        const float scale = inversesqrt(sum_of_lanes(dot(o[i], o[i])) / float(Dv) + EPS);
        row[k] = o[i] * scale * w * silu(z[i]);
    }
    store_half_row(t, row);
#else
    const uint at = (t * Hv + gl_WorkGroupID.x) * (Dv / 4u);
    float sum = 0.0;
    for (uint i = gl_LocalInvocationID.x; i < Dv / 4u; i += LOCAL_SIZE) sum += dot(o[at + i], o[at + i]);
    const float scale = inversesqrt(workgroup_sum(sum) / float(Dv) + EPS);
    for (uint i = gl_LocalInvocationID.x; i < Dv / 4u; i += LOCAL_SIZE)
        o[at + i] = o[at + i] * scale * weight[weight_offset / 4u + i] * silu(z[at + i]);
#endif
}
