// route: which experts a token is sent to, and how much each counts. ids[t, :] = the K largest of logits[t, :], the largest first, of equal
// ones the lower number; shares[t, :K] = softmax over those K; shares[t, K] = sigmoid(h[t, :] . gate), for the expert that every token takes.
//
//   0  step    [..]      u32  in   num_tokens
//   1  logits  [T, X]    f32  in
//   2  h       [T, D]    f32  in
//   3  gate    [..]      f32  in   at gate_offset [D]
//   4  ids     [T, K]    u32  out
//   5  shares  [T, K+1]  f32  out
//
// Softmax over all X, of which the K largest are divided by their sum, is the same. Whatever the logits are, NaN too, ids are below X.
//
// Grid: (T, 1, 1), one workgroup for each row. K <= X, K <= LOCAL_SIZE, D % 4 = 0; any X. Reference: tests/reference/experts.py.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint D = 2048;
layout(constant_id = 2) const uint X = 256;
layout(constant_id = 3) const uint K = 8;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer Logits { float logits[]; };
layout(binding = 2) readonly buffer H { vec4 h[]; };
layout(binding = 3) readonly buffer Gate { vec4 gate[]; };
layout(binding = 4) writeonly buffer Ids { uint ids[]; };
layout(binding = 5) writeonly buffer Shares { float shares[]; };

layout(push_constant) uniform Push { uint gate_offset; };  // a multiple of 4

#include "activations.glsl"
#include "reduce.glsl"

const uint OWN = (X + LOCAL_SIZE - 1u) / LOCAL_SIZE;  // experts of one invocation: i, i + LOCAL_SIZE, ...
const float TAKEN = -3.402823466e38;

void main() {
    const uint t = gl_WorkGroupID.x, lane = gl_LocalInvocationID.x;
    if (t >= step[NUM_TOKENS]) return;

    float left[OWN];  // logits of experts not yet chosen
    [[unroll]] for (uint i = 0; i < OWN; i++) {
        const uint expert = i * LOCAL_SIZE + lane;
        left[i] = expert < X ? logits[t * X + expert] : TAKEN;
    }
    float largest = 0.0, sum = 0.0, share = 0.0;  // share and id: of the k-th choice in invocation k
    uint id = 0u;
    [[dont_unroll]] for (uint k = 0; k < K; k++) {
        float best = left[0];
        [[unroll]] for (uint i = 1; i < OWN; i++) best = max(best, left[i]);
        best = workgroup_max(best);
        float from_end = 1.0;  // X minus the number of the first that is as large; exact, for X is far below 2^24
        [[unroll]] for (uint i = 0; i < OWN; i++) {
            const uint expert = i * LOCAL_SIZE + lane;
            if (expert < X && left[i] == best) from_end = max(from_end, float(X - expert));
        }
        const uint chosen = X - uint(workgroup_max(from_end));
        [[unroll]] for (uint i = 0; i < OWN; i++) if (i * LOCAL_SIZE + lane == chosen) left[i] = TAKEN;
        if (k == 0u) largest = best;
        sum += exp(best - largest);
        if (lane == k) {
            id = chosen;
            share = exp(best - largest);
        }
    }
    if (lane < K) {
        ids[t * K + lane] = id;
        shares[t * (K + 1u) + lane] = share / sum;
    }
    float gate_logit = 0.0;
    for (uint i = lane; i < D / 4u; i += LOCAL_SIZE) gate_logit += dot(h[t * (D / 4u) + i], gate[gate_offset / 4u + i]);
    gate_logit = workgroup_sum(gate_logit);
    if (lane == 0u) shares[t * (K + 1u) + K] = sigmoid(gate_logit);
}
