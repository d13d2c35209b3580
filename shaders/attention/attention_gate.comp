// attention_gate: y[t, h, i] *= sigmoid(qg[t, h, Dh + i]), the output gate of full attention.
//
//   0  step  [..]           u32  in      num_tokens
//   1  qg    [T, H, 2, Dh]  f32  in      the joint query and gate projection
//   2  y     [T, H, Dh]     f32  in out
//
// Grid: (ceil(H * Dh / LOCAL_SIZE), T, 1). Reference: tests/reference/activations.py, sigmoid.
#version 450
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint H = 8;
layout(constant_id = 2) const uint Dh = 256;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer QG { float qg[]; };
layout(binding = 2) buffer Y { float y[]; };

#include "activations.glsl"

void main() {
    const uint i = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y;
    if (t >= step[NUM_TOKENS] || i >= H * Dh) return;
    y[t * H * Dh + i] *= sigmoid(qg[t * H * Dh * 2u + i / Dh * Dh * 2u + Dh + i % Dh]);
}
