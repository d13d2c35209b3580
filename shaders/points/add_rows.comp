// add_rows: x[t, :] += y[t, :]
//
//   0  step  [..]    u32  in      num_tokens
//   1  y     [T, D]  f32  in
//   2  x     [T, D]  f32  in out
//
// Grid: (ceil(D / 4 / LOCAL_SIZE), T, 1). Needs D % 4 = 0.
#version 450
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint D = 1024;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer Y { vec4 y[]; };
layout(binding = 2) buffer X { vec4 x[]; };

void main() {
    const uint i = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y;
    if (i < D / 4u && t < step[NUM_TOKENS]) x[t * (D / 4u) + i] += y[t * (D / 4u) + i];
}
