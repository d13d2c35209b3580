// causal_conv: what the delta rule reads of a layer's projection p, for a prompt:
//   y[t, c] = silu(sum_j weight[c, j] * p[t - 3 + j, c]), a depthwise convolution over 4 tokens with state;
//   then each head u of the queries and keys becomes u / sqrt(sum(u^2) + EPS), and queries are divided by sqrt(Dk).
//
//   0  step    [..]    u32   in      num_tokens
//   1  p       [T, C]  vec4  in
//   2  weight  [..]    vec4  in      at weight_offset [C, 4]; tap 3 is the current token
//   3  state   [..]    vec4  in out  at state_offset [3, C]: the last three rows of p before this call, oldest first; then of this call
//   4  y       [T, C]  vec4  out     a row: Hk query heads, Hk key heads (Dk values each), then the values
//
// Grid: (ceil(C / Dk), ceil(T / TOKENS), 1): a workgroup takes Dk channels, as many as a head of q or k, through TOKENS tokens, an invocation
// four of them. Only the first of a channel touches the state, so that none reads what another writes. C and Dk multiples of 4, Dk at most
// 4 LOCAL_SIZE. EPS stands inside the root, beside the sum. Reference: tests/reference/conv.py, norm.py.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint LOCAL_SIZE = 32;
layout(constant_id = 1) const uint TOKENS = 32;
layout(constant_id = 2) const uint C = 6144;
layout(constant_id = 3) const uint Hk = 16;
layout(constant_id = 4) const uint Dk = 128;
layout(constant_id = 5) const float EPS = 1e-6;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer P { vec4 p[]; };
layout(binding = 2) readonly buffer Weight { vec4 weight[]; };
layout(binding = 3) buffer State { vec4 state[]; };
layout(binding = 4) writeonly buffer Y { vec4 y[]; };

layout(push_constant) uniform Push { uint weight_offset, state_offset; };  // multiples of 4

#include "activations.glsl"
#include "reduce.glsl"

const uint ROW = C / 4u;

// The three rows of p before this call, oldest first; the state is then that of its end.
void take_state(uint c, uint num_tokens, out vec4 past[3]) {
    const uint s = state_offset / 4u + c;
    [[unroll]] for (uint i = 0; i < 3u; i++) past[i] = state[s + i * ROW];
    [[unroll]] for (uint i = 0; i < 3u; i++) {
        const uint row = num_tokens + i;  // of the three in the state and then those of the call
        state[s + i * ROW] = row == 1u ? past[1] : row == 2u ? past[2] : p[(row - 3u) * ROW + c];
    }
}

void main() {
    const uint head = gl_WorkGroupID.x, lane = gl_LocalInvocationID.x, c = head * (Dk / 4u) + lane;
    const uint first = gl_WorkGroupID.y * TOKENS, num_tokens = step[NUM_TOKENS], last = min(first + TOKENS, num_tokens);
    if (first >= num_tokens) return;
    const bool own = lane < Dk / 4u && c < ROW;  // the other invocations only take part in the sums
    mat4 w = mat4(0.0);                          // column j: tap j of the four channels
    vec4 past[3] = vec4[3](vec4(0.0), vec4(0.0), vec4(0.0));
    if (own) {
        const uint at = weight_offset / 4u + 4u * c;
        w = transpose(mat4(weight[at], weight[at + 1u], weight[at + 2u], weight[at + 3u]));
        if (first == 0u) take_state(c, num_tokens, past);
        else [[unroll]] for (uint i = 0; i < 3u; i++) past[i] = p[(first - 3u + i) * ROW + c];
    }
    [[dont_unroll]] for (uint t = first; t < last; t++) {
        vec4 u = vec4(0.0);
        if (own) {
            const vec4 now = p[t * ROW + c];
            u = silu(w[0] * past[0] + w[1] * past[1] + w[2] * past[2] + w[3] * now);
            past[0] = past[1];
            past[1] = past[2];
            past[2] = now;
        }
        if (head < 2u * Hk) u *= inversesqrt(workgroup_sum(dot(u, u)) + EPS) * (head < Hk ? inversesqrt(float(Dk)) : 1.0);
        if (own) y[t * ROW + c] = u;
    }
}
