// keep_row: kept = the last row in use of x, for what comes in a later run.
//
//   0  step  [..]    u32  in   num_tokens, at least 1
//   1  x     [T, D]  f32  in
//   2  kept  [..]    f32  out  at kept_offset [D]
//
// Grid: (ceil(D / 4 / LOCAL_SIZE), 1, 1). Needs D % 4 = 0.
#version 450
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint D = 1024;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer X { vec4 x[]; };
layout(binding = 2) writeonly buffer Kept { vec4 kept[]; };

layout(push_constant) uniform Push { uint kept_offset; };  // a multiple of 4

void main() {
    const uint i = gl_GlobalInvocationID.x;
    if (i < D / 4u) kept[kept_offset / 4u + i] = x[(step[NUM_TOKENS] - 1u) * (D / 4u) + i];
}
