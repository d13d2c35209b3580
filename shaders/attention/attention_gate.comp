// attention_gate: y[t, h, i] *= sigmoid(qg[t, h, Dh + i]), the output gate of full attention.
//
//   0  step  [..]           u32  in      num_tokens
//   1  qg    [T, H, 2, Dh]  f32  in      the joint query and gate projection
//   2  y     [T, H, Dh]     f32  in out
//
// HALF: the result as halves instead, for products in half precision (include/half_row.glsl); y stays as it is:
//
//   3  halves   [T', H * Dh / 2]  u32  out
//   4  factors  [T]               f32  out
//
// Grid: (ceil(H * Dh / 4 / LOCAL_SIZE), T, 1); HALF: (1, T, 1). Needs Dh % 4 = 0. Reference: tests/reference/activations.py, sigmoid.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint H = 8;
layout(constant_id = 2) const uint Dh = 256;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer QG { vec4 qg[]; };
#ifdef HALF
layout(binding = 2) readonly buffer Y { vec4 y[]; };
#define WIDTH (H * Dh)
#define HALVES 3
#define FACTORS 4
#include "half_row.glsl"
#else
layout(binding = 2) buffer Y { vec4 y[]; };
#endif

#include "activations.glsl"

const uint COLUMNS = H * Dh / 4u, OF_HEAD = Dh / 4u;  // vec4 of a row of y, and of a head in it

vec4 gated(uint t, uint i) { return y[t * COLUMNS + i] * sigmoid(qg[t * COLUMNS * 2u + (i / OF_HEAD * 2u + 1u) * OF_HEAD + i % OF_HEAD]); }

void main() {
    const uint t = gl_WorkGroupID.y;
    if (t >= step[NUM_TOKENS]) return;
#ifdef HALF
    vec4 row[KEPT];
    [[unroll]] for (uint k = 0; k < KEPT; k++) {
        const uint i = k * LOCAL_SIZE + gl_LocalInvocationID.x;
        row[k] = i < COLUMNS ? gated(t, i) : vec4(0.0);
    }
    store_half_row(t, row);
#else
    const uint i = gl_GlobalInvocationID.x;
    if (i < COLUMNS) y[t * COLUMNS + i] = gated(t, i);
#endif
}
