// swiglu: gate[t, i] = silu(gate[t, i]) * up[t, i]
//
//   0  step  [..]    u32  in      num_tokens
//   1  up    [T, F]  f32  in
//   2  gate  [T, F]  f32  in out
//
// HALF: the product as halves instead, for products in half precision (include/half_row.glsl); gate stays as it is:
//
//   3  halves   [T', F / 2]  u32  out
//   4  factors  [T]          f32  out
//
// A token may have several rows, as many as the grid is deep.
//
// Grid: (ceil(F / 4 / LOCAL_SIZE), T, rows of a token); HALF: (1, T, ..). Needs F % 4 = 0. Source: GLU variants, Shazeer 2020 (arXiv 2002.05202).
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint F = 3584;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer Up { vec4 up[]; };
#ifdef HALF
layout(binding = 2) readonly buffer Gate { vec4 gate[]; };
#define WIDTH F
#define HALVES 3
#define FACTORS 4
#include "half_row.glsl"
#else
layout(binding = 2) buffer Gate { vec4 gate[]; };
#endif

#include "activations.glsl"

void main() {
    const uint t = gl_WorkGroupID.y * gl_NumWorkGroups.z + gl_WorkGroupID.z;
    if (gl_WorkGroupID.y >= step[NUM_TOKENS]) return;
#ifdef HALF
    vec4 row[KEPT];
    [[unroll]] for (uint k = 0; k < KEPT; k++) {
        const uint i = k * LOCAL_SIZE + gl_LocalInvocationID.x, o = t * (F / 4u) + i;
        row[k] = i < F / 4u ? silu(gate[o]) * up[o] : vec4(0.0);
    }
    store_half_row(t, row);
#else
    const uint i = gl_GlobalInvocationID.x, o = t * (F / 4u) + i;
    if (i < F / 4u) gate[o] = silu(gate[o]) * up[o];
#endif
}
