// edit_rows: rows of a buffer that a program works in, changed in place at this place of it:
//   OP 0:  x <- x + v        OP 1:  x <- x v        OP 2:  x <- v
//
//   0  step    [..]        u32  in      num_tokens, kept_row
//   1  rows    [T]         u32  in      for each token of this run the row of `values` that changes it; NONE: it stays
//   2  values  [R, H W]    u32  in      bits of v; those of KEEP leave their number as it is, bit for bit
//   3  x       [..]        u32  in out  [t, h, i] at offset + (t + first) row_stride + h head_stride + i
//
// first is kept_row where rows lie among those that are kept (KEPT = 1, see kept_rows.glsl), else 0.
// Grid: (ceil(H W / LOCAL_SIZE), T, 1). Any H and W from 1.
#version 450
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint H = 1;
layout(constant_id = 2) const uint W = 1024;
layout(constant_id = 3) const uint KEPT = 0;
layout(constant_id = 4) const uint OP = 0;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer Rows { uint rows[]; };
layout(binding = 2) readonly buffer Values { uint values[]; };
layout(binding = 3) buffer X { uint x[]; };

layout(push_constant) uniform Push { uint offset, row_stride, head_stride; };

const uint NONE = 0xFFFFFFFFu, KEEP = 0x7FA00002u;  // a signalling NaN, which arithmetic never gives
const uint ADD = 0u, SCALE = 1u;

void main() {
    const uint i = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y;
    if (i >= H * W || t >= step[NUM_TOKENS] || rows[t] == NONE) return;
    const uint v = values[rows[t] * (H * W) + i];
    if (v == KEEP) return;
    const uint row = t + (KEPT != 0u ? step[KEPT_ROW] : 0u);
    const uint at = offset + row * row_stride + (i / W) * head_stride + i % W;
    const float was = uintBitsToFloat(x[at]), by = uintBitsToFloat(v);
    x[at] = OP == ADD ? floatBitsToUint(was + by) : OP == SCALE ? floatBitsToUint(was * by) : v;
}
