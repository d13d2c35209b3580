// embedding: x[t] = row token_ids[t] of the embedding matrix, for the rows of one matrix part.
//
//   0  step       [..]        u32  in   num_tokens
//   1  token_ids  [T]         u32  in
//   2  w          [..]        at w_offset [rows', D]: weights of one part (include/weights.glsl)
//   3  x          [T, D]      f32  out  tokens of other parts are left as they are
//
// Grid: (T, ceil(D / 32 / LOCAL_SIZE), 1), one sub-block of 32 values for each invocation. Needs D % 32 = 0.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint LOCAL_SIZE = 32;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer TokenIds { uint token_ids[]; };
layout(binding = 2) readonly buffer W4 { uvec4 w4[]; };
layout(binding = 2) readonly buffer W2 { uvec2 w2[]; };
layout(binding = 2) readonly buffer W1 { uint w1[]; };
layout(binding = 3) buffer X { vec4 x[]; };

layout(push_constant) uniform Push { uint w_offset, rows, D, first_row; };  // w_offset in uvec4

#include "weights.glsl"

void main() {
    const uint t = gl_WorkGroupID.x, block = gl_GlobalInvocationID.y * LOCAL_SIZE + gl_LocalInvocationID.x;
    if (t >= step.num_tokens || block >= D / 32u) return;
    const uint n = token_ids[t] - first_row;  // wraps for a row before this part
    if (n >= rows) return;
    const uint units = (D / 32u + UNIT_SUBS - 1u) / UNIT_SUBS;
    const uint at = w_offset + row_start(n, units) + block / UNIT_SUBS * UNIT_STRIDE;
    Sub sub = load_sub(load_unit(at, n & 31u), at, block % UNIT_SUBS);
    const uint o = (t * D + block * 32u) / 4u;
    [[dont_unroll]] for (uint p = 0; p < 4u; p++) {
        vec4 a, b;
        next8(sub, a, b);
        x[o + 2u * p] = a;
        x[o + 2u * p + 1u] = b;
    }
}
