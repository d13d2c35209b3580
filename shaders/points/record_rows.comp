// record_rows: rows of tokens out of a buffer that a program works in, as they are at this place of it, bit for bit:
//   y[rows[t], h, i] = x[offset + (t + first) row_stride + h head_stride + i]
//
//   0  step    [..]       u32  in   num_tokens, kept_row
//   1  rows    [T]        u32  in   for each token of this run the row of y that takes it, no two the same; NONE: none does
//   2  x       [..]       u32  in
//   3  y       [.., H W]  u32  out
//
// first is kept_row where rows lie among those that are kept (KEPT = 1, see kept_rows.glsl), else 0.
// Grid: (ceil(H W / LOCAL_SIZE), T, 1). Any H and W from 1.
#version 450
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint H = 1;
layout(constant_id = 2) const uint W = 1024;
layout(constant_id = 3) const uint KEPT = 0;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer Rows { uint rows[]; };
layout(binding = 2) readonly buffer X { uint x[]; };
layout(binding = 3) writeonly buffer Y { uint y[]; };

layout(push_constant) uniform Push { uint offset, row_stride, head_stride; };

const uint NONE = 0xFFFFFFFFu;

void main() {
    const uint i = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y;
    if (i >= H * W || t >= step[NUM_TOKENS] || rows[t] == NONE) return;
    const uint row = t + (KEPT != 0u ? step[KEPT_ROW] : 0u);
    y[rows[t] * (H * W) + i] = x[offset + row * row_stride + (i / W) * head_stride + i % W];
}
