// add_experts: x[t, :] += sum_k shares[t, k] y[place of (t, k), :] + shares[t, K] shared[t, :], in this order.
//
//   0  step    [..]      u32  in      num_tokens
//   1  y       [S, D]    f32  in      what the experts made of their rows
//   2  shared  [T, D]    f32  in      what the expert made that every token takes
//   3  shares  [T, K+1]  f32  in
//   4  places  [T, K]    u32  in      see group_rows.comp; GROUPED = 0: not read, rows lie as t, k
//   5  x       [T, D]    f32  in out
//
// Grid: (ceil(D / 4 / LOCAL_SIZE), T, 1). Needs D % 4 = 0. Reference: tests/reference/experts.py.
#version 450
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint D = 2048;
layout(constant_id = 2) const uint K = 8;
layout(constant_id = 3) const uint GROUPED = 1;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer Y { vec4 y[]; };
layout(binding = 2) readonly buffer Shared { vec4 from_shared[]; };
layout(binding = 3) readonly buffer Shares { float shares[]; };
layout(binding = 4) readonly buffer Places { uint places[]; };
layout(binding = 5) buffer Stream { vec4 x[]; };

void main() {
    const uint t = gl_WorkGroupID.y, i = gl_GlobalInvocationID.x;
    if (t >= step[NUM_TOKENS] || i >= D / 4u) return;
    vec4 sum = vec4(0.0);
    for (uint k = 0; k < K; k++) {
        const uint slot = t * K + k, place = GROUPED != 0u ? places[slot] : slot;
        sum = fma(vec4(shares[t * (K + 1u) + k]), y[place * (D / 4u) + i], sum);
    }
    const uint o = t * (D / 4u) + i;
    x[o] += fma(vec4(shares[t * (K + 1u) + K]), from_shared[o], sum);
}
