// delta_inputs: what the delta rule of a few rows reads, from the layer's projections of them. For each row
//   q, k, v = silu(causal convolution over 4 rows of p);  q <- q / |q| / sqrt(Dk);  k <- k / |k|
//   log_decay = ssm_a * softplus(alpha + dt);  beta = sigmoid(beta_logits)
// (in prefill causal_conv and delta_gates). The rows stay in `kept`: those that the next run is told are accepted become part of the
// state then, the others never do. The convolution state takes in the rows that wait, as M does in delta_rows.
//
//   0  step         [..]     u32   in      num_tokens, waiting, kept_row
//   1  p            [R, C]   vec4  in
//   2  alpha        [R, Hv]  f32   in
//   3  beta_logits  [R, Hv]  f32   in
//   4  taps         [..]     vec4  in      at taps_offset [C, 4]; tap 3 is the current row
//   5  dt           [..]     f32   in      at dt_offset [Hv]
//   6  ssm_a        [..]     f32   in      at a_offset [Hv]: -exp(A_log), as the file has it
//   7  state        [..]     vec4  in out  at state_offset [3, C]: the last three rows of p that it has seen, oldest first
//   8  kept         [..]     f32   in out  at kept_offset, see kept_rows.glsl
//
// Grid: (ceil(C / Dk) + 1, 1, 1): a workgroup takes Dk channels, as many as a head of q or k, through all rows; the last has the gates.
// Dk a multiple of 4, at most 4 LOCAL_SIZE. EPS stands inside the root, beside the sum. Reference: tests/reference/conv.py, norm.py.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint LOCAL_SIZE = 32;
layout(constant_id = 1) const uint Hk = 16;
layout(constant_id = 2) const uint Hv = 16;
layout(constant_id = 3) const uint Dk = 128;
layout(constant_id = 4) const uint C = 6144;
layout(constant_id = 5) const float EPS = 1e-6;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer P { vec4 p[]; };
layout(binding = 2) readonly buffer Alpha { float alpha[]; };
layout(binding = 3) readonly buffer BetaLogits { float beta_logits[]; };
layout(binding = 4) readonly buffer Taps { vec4 taps[]; };
layout(binding = 5) readonly buffer Dt { float dt[]; };
layout(binding = 6) readonly buffer SsmA { float ssm_a[]; };
layout(binding = 7) buffer State { vec4 state[]; };
layout(binding = 8) buffer Kept { vec4 kept[]; };
layout(binding = 8) buffer KeptGates { vec2 kept_gates[]; };

layout(push_constant) uniform Push { uint taps_offset, state_offset, kept_offset, dt_offset, a_offset; };  // the first three multiples of 4

#include "activations.glsl"
#include "committed.glsl"
#include "reduce.glsl"

void write_gates() {
    for (uint i = gl_LocalInvocationID.x; i < step[NUM_TOKENS] * Hv; i += LOCAL_SIZE) {
        const uint h = i % Hv;
        const float log_decay = ssm_a[a_offset + h] * softplus(alpha[i] + dt[dt_offset + h]);
        kept_gates[gates_at(kept_offset, step[KEPT_ROW]) + i] = vec2(log_decay, sigmoid(beta_logits[i]));
    }
}

void main() {
    const uint head = gl_WorkGroupID.x, lane = gl_LocalInvocationID.x, c = head * (Dk / 4u) + lane;
    if (head == gl_NumWorkGroups.x - 1u) {
        write_gates();
        return;
    }
    const bool own = lane < Dk / 4u && c < C / 4u;  // the other invocations only take part in the sums
    mat4 w = mat4(0.0);                             // column j: tap j of the four channels
    vec4 past[3] = vec4[3](vec4(0.0), vec4(0.0), vec4(0.0));
    if (own) {
        const uint at = taps_offset / 4u + 4u * c;
        w = transpose(mat4(taps[at], taps[at + 1u], taps[at + 2u], taps[at + 3u]));
        [[unroll]] for (uint i = 0; i < 3u; i++) past[i] = committed(i, c, state_offset, kept_offset);
        if (step[WAITING] > 0u) [[unroll]] for (uint i = 0; i < 3u; i++) state[(state_offset + i * C) / 4u + c] = past[i];
    }
    const uint num_tokens = step[NUM_TOKENS], kept_row = step[KEPT_ROW];
    [[dont_unroll]] for (uint t = 0; t < num_tokens; t++) {
        vec4 y = vec4(0.0);
        if (own) {
            const vec4 now = p[t * (C / 4u) + c];
            kept[raw_at(kept_offset, t) + c] = now;
            y = silu(w[0] * past[0] + w[1] * past[1] + w[2] * past[2] + w[3] * now);
            past[0] = past[1];
            past[1] = past[2];
            past[2] = now;
        }
        if (head < 2u * Hk) y *= inversesqrt(workgroup_sum(dot(y, y)) + EPS) * (head < Hk ? inversesqrt(float(Dk)) : 1.0);
        if (own) kept[qkv_at(kept_offset, kept_row + t) + c] = y;
    }
}
