// delta_rule: the gated delta rule over all tokens of the call, one step at a time. For value head h with key head h mod Hk:
//   M <- e^log_decay M;  u = beta (v - M k);  M <- M + u k^T;  o = M q
//
//   0  step   num_tokens
//   1  qkv    [T, C]       f32  in      normalised q and k (q scaled), then v; a row: Hk q heads, Hk k heads, Hv v heads
//   2  gates  [T, Hv]      vec2 in      (log_decay, beta)
//   3  state  [..]         f32  in out  at state_offset [Hv, Dv, Dk]: M, row = value index
//   4  o      [T, Hv, Dv]  f32  out
//
// Rows of M never mix. LANES neighbouring invocations share ROWS rows, each holding every LANES-th word of 4 of a row in registers for
// the whole call, and sum over the row by exchanging partial sums among the LANES: LANES is a power of two and at most the device's
// subgroup size, so the exchange never leaves a subgroup. A row group loads k and q for itself: ROWS share them.
//
// SHUFFLE: for devices that pay for every lane of a load (see matmul.comp). LANES is 1: each invocation holds whole rows, for which all
// lanes need the same words of k and q. Each loads every SUBGROUPth of them, and shuffles hand them to all. SUBGROUP is the device's
// subgroup size, a power of two of which LOCAL_SIZE is a multiple.
//
// Grid: (Dv / (LOCAL_SIZE / LANES * ROWS), Hv, 1), which must divide; Dk a multiple of 4 LANES.
// Source: Gated Delta Networks, Yang et al. 2024 (arXiv 2412.06464). Reference: tests/reference/delta_rule.py.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_shuffle : require

layout(constant_id = 0) const uint LOCAL_SIZE = 32;
layout(constant_id = 1) const uint LANES = 4;
layout(constant_id = 2) const uint ROWS = 2;
layout(constant_id = 3) const uint Hk = 16;
layout(constant_id = 4) const uint Hv = 16;
layout(constant_id = 5) const uint Dk = 128;
layout(constant_id = 6) const uint Dv = 128;
#ifdef SHUFFLE
layout(constant_id = 7) const uint SUBGROUP = 8;
#endif
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer QKV { float qkv[]; };
layout(binding = 1) readonly buffer QKV4 { vec4 qkv4[]; };
layout(binding = 2) readonly buffer Gates { vec2 gates[]; };
layout(binding = 3) buffer State { vec4 state[]; };
layout(binding = 4) writeonly buffer O { float o[]; };

layout(push_constant) uniform Push { uint state_offset; };  // a multiple of 4

const uint ROW_WORDS = Dk / 4u, WORDS = ROW_WORDS / LANES;  // words of 4 of a row, and of it those that one invocation holds
const uint C = 2u * Hk * Dk + Hv * Dv;

// SHARE invocations load the words of k and q that they need: each word i * SHARE + (its number among them) for i < LOADS.
#ifdef SHUFFLE
const uint SHARE = SUBGROUP;
#define HERE(loaded, i) subgroupShuffle(loaded[(i) / SHARE], (i) % SHARE)
#else
const uint SHARE = LANES;
#define HERE(loaded, i) loaded[i]
#endif
const uint LOADS = (ROW_WORDS + SHARE - 1u) / SHARE;

// Sum over the LANES invocations that share a row; each gets it.
vec2 row_sum(vec2 v) {
    [[unroll]] for (uint m = 1; m < LANES; m *= 2u) v += subgroupShuffleXor(v, m);
    return v;
}

void main() {
    const uint h = gl_WorkGroupID.y, lane = gl_LocalInvocationID.x % LANES;
    const uint row0 = (gl_WorkGroupID.x * (LOCAL_SIZE / LANES) + gl_LocalInvocationID.x / LANES) * ROWS;

    const uint at = state_offset / 4u + (h * Dv + row0) * ROW_WORDS + lane;
    vec4 m[ROWS * WORDS];
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        [[unroll]] for (uint i = 0; i < WORDS; i++) m[r * WORDS + i] = state[at + r * ROW_WORDS + i * LANES];

    const uint num_tokens = step[NUM_TOKENS], q_head = h % Hk * Dk, k_head = q_head + Hk * Dk, v_head = 2u * Hk * Dk + h * Dv;
    [[dont_unroll]] for (uint t = 0; t < num_tokens; t++) {
        const vec2 gate = gates[t * Hv + h];
        const float decay = exp(gate.x);
        vec4 k[LOADS], q[LOADS];
        float kq = 0.0;
        [[unroll]] for (uint i = 0; i < LOADS; i++) {
#ifdef SHUFFLE
            const uint word = i * SHARE + gl_SubgroupInvocationID, stored = min(word, ROW_WORDS - 1u);
            k[i] = qkv4[(t * C + k_head) / 4u + stored];
            q[i] = qkv4[(t * C + q_head) / 4u + stored];
            kq += word < ROW_WORDS ? dot(k[i], q[i]) : 0.0;
#else
            k[i] = qkv4[(t * C + k_head) / 4u + i * SHARE + lane];  // summed in this order, the compiler keeps i * SHARE for the load
            q[i] = qkv4[(t * C + q_head) / 4u + i * SHARE + lane];
            kq += dot(k[i], q[i]);
#endif
        }
        [[unroll]] for (uint mask = 1; mask < SHARE; mask *= 2u) kq += subgroupShuffleXor(kq, mask);
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            vec2 mk_mq = vec2(0.0);  // M k and M q of this row, after the decay
            [[unroll]] for (uint i = 0; i < WORDS; i++) {
                m[r * WORDS + i] *= decay;
                mk_mq += vec2(dot(m[r * WORDS + i], HERE(k, i)), dot(m[r * WORDS + i], HERE(q, i)));
            }
            if (LANES > 1u) mk_mq = row_sum(mk_mq);
            const float u = gate.y * (qkv[t * C + v_head + row0 + r] - mk_mq.x);
            [[unroll]] for (uint i = 0; i < WORDS; i++) m[r * WORDS + i] += u * HERE(k, i);
            if (lane == 0u) o[(t * Hv + h) * Dv + row0 + r] = mk_mq.y + u * kq;  // (M + u k^T) q
        }
    }

    [[unroll]] for (uint r = 0; r < ROWS; r++)
        [[unroll]] for (uint i = 0; i < WORDS; i++) state[at + r * ROW_WORDS + i * LANES] = m[r * WORDS + i];
}
