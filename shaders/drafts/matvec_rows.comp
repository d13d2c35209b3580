// matvec_rows: y[y_offset + i] = sum_k w[ids[i], k] * x[k], for those of the rows ids that lie in one matrix part.
//
//   0  x    [K]   f32  in
//   1  w    [..]  in       weights of one part [rows, K] (include/weights.glsl)
//   2  ids  [M]   u32  in  rows of the matrix; NO_ROW for none, whose y is the least float there is
//   3  y    [..]  f32  out
//
// Grid: (M, 1, 1), a workgroup for each row, whose sub-blocks of 32 weights its invocations share out.
// Reference: tests/reference/linear.py.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint LOCAL_SIZE = 32;
layout(constant_id = 1) const uint Y_OFFSET = 0;
layout(local_size_x_id = 0) in;

layout(binding = 0) readonly buffer X { vec4 x[]; };
#include "weights.glsl"
layout(binding = 2) readonly buffer Ids { uint ids[]; };
layout(binding = 3) buffer Y { float y[]; };  // those of other parts are left as they are

#include "reduce.glsl"

const uint NO_ROW = ~0u;
const float LEAST = -3.402823466e38;

void main() {
    const uint i = gl_WorkGroupID.x, n = ids[i] - first_row;  // wraps for a row before this part
    if (ids[i] == NO_ROW && first_row == 0u && gl_LocalInvocationID.x == 0u) y[Y_OFFSET + i] = LEAST;
    if (ids[i] == NO_ROW || n >= rows) return;
    prepare_weights();

    float sum = 0.0;
    for (uint j = gl_LocalInvocationID.x; j < subs_of_row(); j += LOCAL_SIZE) {
        const uint at = row_start(n) + j / UNIT_SUBS * UNIT_STRIDE;
        Sub sub = load_sub(load_unit(at, n & 31u), at, j % UNIT_SUBS);
        [[dont_unroll]] for (uint p = 0; p < eights(j * 32u); p++) {
            vec4 a, b;
            next8(sub, a, b);
            sum += dot(a, x[j * 8u + 2u * p]) + dot(b, x[j * 8u + 2u * p + 1u]);
        }
    }
    sum = workgroup_sum(sum);
    if (gl_LocalInvocationID.x == 0u) y[Y_OFFSET + i] = sum;
}
