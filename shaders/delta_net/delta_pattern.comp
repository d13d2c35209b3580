// delta_pattern: how much of each token's value is in what a head of a delta net gives for chosen queries. With the keys k_s, log decays g_s and
// strengths beta_s that the delta rule read for the tokens s, and the query q_t (scaled) of token t, for value head h with key head h mod Hk:
//   w = q_t;   for s = t, t - 1, .. 0:   c = k_s . w;   P[t, s] = beta_s c;   w <- e^g_s (w - beta_s c k_s)
// The rule M <- e^g M (I - beta k k^T) + beta v k^T, o = M q, unrolled from the query backwards: o_t = sum_s P[t, s] v_s + M w, with M the state
// before token 0 and the w that is left. Exact; P has signs, and its rows do not sum to 1.
//
// Tokens lie in segments. A dispatch has one, of N tokens from `first` on; later ones must have run before, for w goes on from them.
//
//   0  seen       [Q]          u32   in      tokens that a query looks back on, t + 1; 0: it is not in use
//   1  q          [Q, Hk, Dk]  vec4  in
//   2  k          [N, Hk, Dk]  vec4  in      of the segment
//   3  log_decay  [N, Hv]      f32   in
//   4  beta       [N, Hv]      f32   in
//   5  w          [Q, Hv, Dk]  vec4  in out  written by the segment that holds the query's token, read in those before it
//   6  rows       [Q, Hv, N]   f32   out     P of the segment's tokens; 0 after the query
//
// Grid: (Hv, Q, 1): a workgroup has a head of a query, and holds w in registers. Dk a multiple of 4. Reference: tests/reference/delta_pattern.py.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint LOCAL_SIZE = 32;
layout(constant_id = 1) const uint Hk = 16;
layout(constant_id = 2) const uint Hv = 16;
layout(constant_id = 3) const uint Dk = 128;
layout(constant_id = 4) const uint N = 256;
layout(local_size_x_id = 0) in;

layout(binding = 0) readonly buffer Seen { uint seen[]; };
layout(binding = 1) readonly buffer Q { vec4 q[]; };
layout(binding = 2) readonly buffer K { vec4 k[]; };
layout(binding = 3) readonly buffer LogDecay { float log_decay[]; };
layout(binding = 4) readonly buffer Beta { float beta[]; };
layout(binding = 5) buffer W { vec4 w[]; };
layout(binding = 6) writeonly buffer Rows { float rows[]; };

layout(push_constant) uniform Push { uint first; };

#include "reduce.glsl"

const uint WORDS = Dk / 4u, OWN = (WORDS + LOCAL_SIZE - 1u) / LOCAL_SIZE;  // words of 4 of a vector, and of it those that an invocation holds

void main() {
    const uint h = gl_WorkGroupID.x, j = gl_WorkGroupID.y, lane = gl_LocalInvocationID.x, visible = seen[j];
    if (visible == 0u) return;
    const uint row = (j * Hv + h) * N, k_head = h % Hk * WORDS, here = min(visible > first ? visible - first : 0u, N);  // tokens of the segment
    for (uint s = here + lane; s < N; s += LOCAL_SIZE) rows[row + s] = 0.0;
    if (here == 0u) return;

    const bool begins = visible <= first + N;
    vec4 left[OWN];
    [[unroll]] for (uint i = 0; i < OWN; i++) {
        const uint word = i * LOCAL_SIZE + lane;
        left[i] = vec4(0.0);
        if (word < WORDS) left[i] = begins ? q[(j * Hk + h % Hk) * WORDS + word] : w[(j * Hv + h) * WORDS + word];
    }
    [[dont_unroll]] for (uint s = here; s-- > 0u;) {
        vec4 key[OWN];
        float c = 0.0;
        [[unroll]] for (uint i = 0; i < OWN; i++) {
            const uint word = i * LOCAL_SIZE + lane;
            key[i] = word < WORDS ? k[s * (Hk * WORDS) + k_head + word] : vec4(0.0);
            c += dot(key[i], left[i]);
        }
        const float p = beta[s * Hv + h] * workgroup_sum(c), decay = exp(log_decay[s * Hv + h]);
        if (lane == 0u) rows[row + s] = p;
        [[unroll]] for (uint i = 0; i < OWN; i++) left[i] = decay * (left[i] - p * key[i]);
    }
    [[unroll]] for (uint i = 0; i < OWN; i++) {
        const uint word = i * LOCAL_SIZE + lane;
        if (word < WORDS) w[(j * Hv + h) * WORDS + word] = left[i];
    }
}
