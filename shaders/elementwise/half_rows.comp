// half_rows: a row of activations as halves, times a power of two that keeps them from overflow; the factor that undoes it.
//
//   0  step     [..]         u32  in   num_tokens
//   1  x        [T, WIDTH]   f32  in
//   2  halves   [T', WIDTH / 2]  u32  out  rows past T are not written
//   3  factors  [T]          f32  out  x = halves * factor, rounded to nearest
//
// Grid: (T, 1, 1), one workgroup for each row. Needs WIDTH % 4 = 0. NaN and infinity stay what they are, or become NaN.
// Reference: tests/reference/linear.py, half_rows.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint WIDTH = 1024;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer X { vec4 x[]; };

#define HALVES 2
#define FACTORS 3
#include "half_row.glsl"

void main() {
    const uint t = gl_WorkGroupID.x;
    if (t >= step[NUM_TOKENS]) return;
    vec4 row[KEPT];
    [[unroll]] for (uint i = 0; i < KEPT; i++) {
        const uint c = i * LOCAL_SIZE + gl_LocalInvocationID.x;
        row[i] = c < WIDTH / 4u ? x[t * (WIDTH / 4u) + c] : vec4(0.0);
    }
    store_half_row(t, row);
}
