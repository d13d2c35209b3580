// move_rows: rows of one buffer to places in another, y[to] = x[from] for the pairs of this run.
//
//   0  step   [..]      u32  in   num_tokens, how many pairs
//   1  pairs  [T, 2]    u32  in   (from, to), no two with the same `to`; a `from` of NONE moves nothing
//   2  x      [.., D]   f32  in
//   3  y      [.., D]   f32  out
//
// Grid: (ceil(D / 4 / LOCAL_SIZE), T, 1). Needs D % 4 = 0.
#version 450
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint D = 1024;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer Pairs { uvec2 pairs[]; };
layout(binding = 2) readonly buffer X { vec4 x[]; };
layout(binding = 3) writeonly buffer Y { vec4 y[]; };

const uint NONE = 0xFFFFFFFFu;

void main() {
    const uint i = gl_GlobalInvocationID.x, row = gl_WorkGroupID.y;
    if (i >= D / 4u || row >= step[NUM_TOKENS]) return;
    const uvec2 pair = pairs[row];
    if (pair.x != NONE) y[pair.y * (D / 4u) + i] = x[pair.x * (D / 4u) + i];
}
