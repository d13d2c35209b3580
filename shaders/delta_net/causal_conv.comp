// causal_conv: y[t, c] = silu(sum_j weight[c, j] * p[t - 3 + j, c]), a depthwise convolution over 4 tokens with state.
//
//   0  step    [..]    u32   in      num_tokens
//   1  p       [T, C]  f32   in
//   2  weight  [..]    vec4  in      at weight_offset [C, 4]; tap 3 is the current token
//   3  state   [..]    f32   in out  at state_offset [3, C]: the last three rows of p before this call, oldest first; then of this call
//   4  y       [T, C]  f32   out
//
// Grid: (ceil(C / LOCAL_SIZE), ceil(T / TOKENS), 1): an invocation takes one channel through TOKENS tokens. Only the first of a channel
// touches the state, so that none reads what another writes. Reference: tests/reference/conv.py.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint TOKENS = 32;
layout(constant_id = 2) const uint C = 6144;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer P { float p[]; };
layout(binding = 2) readonly buffer Weight { vec4 weight[]; };
layout(binding = 3) buffer State { float state[]; };
layout(binding = 4) writeonly buffer Y { float y[]; };

layout(push_constant) uniform Push { uint weight_offset, state_offset; };  // weight_offset a multiple of 4

#include "activations.glsl"

void main() {
    const uint c = gl_GlobalInvocationID.x, first = gl_WorkGroupID.y * TOKENS, num_tokens = step[NUM_TOKENS];
    if (c >= C || first >= num_tokens) return;
    const vec4 w = weight[weight_offset / 4u + c];
    const uint s = state_offset + c, at = first * C + c, last = min(first + TOKENS, num_tokens);
    vec3 past;
    if (first == 0u) {
        past = vec3(state[s], state[C + s], state[2u * C + s]);
        [[unroll]] for (uint i = 0; i < 3u; i++) {
            const uint row = num_tokens + i;  // of the three in the state and then those of the call
            state[s + i * C] = row < 3u ? past[min(row, 2u)] : p[(row - 3u) * C + c];
        }
    } else {
        past = vec3(p[at - 3u * C], p[at - 2u * C], p[at - C]);
    }
    for (uint t = first; t < last; t++) {
        const float now = p[t * C + c];
        y[t * C + c] = silu(dot(w, vec4(past, now)));
        past = vec3(past.yz, now);
    }
}
