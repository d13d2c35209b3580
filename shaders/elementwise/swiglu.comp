// swiglu: gate[t, i] = silu(gate[t, i]) * up[t, i]
//
//   0  step  [..]    u32  in      num_tokens
//   1  up    [T, F]  f32  in
//   2  gate  [T, F]  f32  in out
//
// Grid: (ceil(F / 4 / LOCAL_SIZE), T, 1). Needs F % 4 = 0. Source: GLU variants, Shazeer 2020 (arXiv 2002.05202).
#version 450
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint F = 3584;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer Up { vec4 up[]; };
layout(binding = 2) buffer Gate { vec4 gate[]; };

#include "activations.glsl"

void main() {
    const uint i = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y;
    if (t >= step[NUM_TOKENS] || i >= F / 4u) return;
    const uint o = t * (F / 4u) + i;
    gate[o] = silu(gate[o]) * up[o];
}
