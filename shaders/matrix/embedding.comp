// embedding: x[t] = row token_ids[t] of the embedding matrix, for the rows of one matrix part.
//
//   0  step       num_tokens
//   1  w          [..]    in       weights of one part [rows, K] (include/weights.glsl)
//   2  token_ids  [T]     u32 in
//   3  x          [T, K]  f32 out  tokens of other parts are left as they are
//
// Grid: (T, ceil(K / 32 / LOCAL_SIZE), 1), one sub-block of 32 values for each invocation.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint LOCAL_SIZE = 32;
layout(local_size_x_id = 0) in;

#include "step.glsl"
#include "weights.glsl"
layout(binding = 2) readonly buffer TokenIds { uint token_ids[]; };
layout(binding = 3) buffer X { vec4 x[]; };

void main() {
    const uint t = gl_WorkGroupID.x, block = gl_GlobalInvocationID.y * LOCAL_SIZE + gl_LocalInvocationID.x;
    if (t >= step[NUM_TOKENS]) return;
    const uint n = token_ids[t] - first_row;  // wraps for a row before this part
    if (n >= rows) return;
    prepare_weights();
    if (block >= subs_of_row()) return;
    const uint at = row_start(n) + block / UNIT_SUBS * UNIT_STRIDE;
    Sub sub = load_sub(load_unit(at, n & 31u), at, block % UNIT_SUBS);
    const uint o = (t * K + block * 32u) / 4u;
    [[dont_unroll]] for (uint p = 0; p < eights(block * 32u); p++) {
        vec4 a, b;
        next8(sub, a, b);
        x[o + 2u * p] = a;
        x[o + 2u * p + 1u] = b;
    }
}
