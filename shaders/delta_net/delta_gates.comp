// delta_gates: (log_decay, beta) of each token and value head from the two gate projections.
//   log_decay = ssm_a * softplus(alpha + dt) <= 0,  beta = sigmoid(beta_logits)
//
//   0  step         [..]     u32   in   num_tokens
//   1  alpha        [T, Hv]  f32   in
//   2  beta_logits  [T, Hv]  f32   in
//   3  dt           [..]     f32   in   at dt_offset [Hv]
//   4  ssm_a        [..]     f32   in   at a_offset [Hv]: -exp(A_log), as the file has it
//   5  gates        [T, Hv]  vec2  out
//
// Grid: (ceil(Hv / LOCAL_SIZE), T, 1). Source: Gated Delta Networks, Yang et al. 2024 (arXiv 2412.06464).
#version 450
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 0) const uint LOCAL_SIZE = 32;
layout(constant_id = 1) const uint Hv = 16;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer Alpha { float alpha[]; };
layout(binding = 2) readonly buffer BetaLogits { float beta_logits[]; };
layout(binding = 3) readonly buffer Dt { float dt[]; };
layout(binding = 4) readonly buffer SsmA { float ssm_a[]; };
layout(binding = 5) writeonly buffer Gates { vec2 gates[]; };

layout(push_constant) uniform Push { uint dt_offset, a_offset; };

#include "activations.glsl"

void main() {
    const uint h = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y;
    if (t >= step[NUM_TOKENS] || h >= Hv) return;
    const uint i = t * Hv + h;
    gates[i] = vec2(ssm_a[a_offset + h] * softplus(alpha[i] + dt[dt_offset + h]), sigmoid(beta_logits[i]));
}
