// delta_rows: the gated delta rule of delta_rule.comp over 1 to 8 rows that may yet be taken back. M in memory is the state before the rows that
// wait; they are applied and M is stored, then the new rows run from it in registers only. For value head h with key head h mod Hk, a row does
//   M <- e^log_decay M;  u = beta (v - M k);  M <- M + u k^T;  o = M q
//
//   0  step   [..]         u32   in      num_tokens, waiting, kept_row
//   1  kept   [..]         f32   in      of layer l at kept_offset + l kept_stride, see kept_rows.glsl
//   2  state  [..]         vec4  in out  of layer l at state_offset + l state_stride [Hv, Dv, Dk]: M, row = value index
//   3  o      [R, Hv, Dv]  f32   out     of the new rows; nothing where there are none
//
// Waiting and new rows go through the same instructions, whatever their number: the bits of a row's M and o do not depend on how many rows run
// together, nor on when it is applied again.
//
// LANES, ROWS, SHUFFLE and what is shared by how many are those of delta_rule.comp.
//
// Grid: (Dv / (LOCAL_SIZE / LANES * ROWS), Hv, layers), which must divide; Dk a multiple of 4 LANES.
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
layout(binding = 1) readonly buffer Kept { float kept[]; };
layout(binding = 1) readonly buffer Kept4 { vec4 kept4[]; };
layout(binding = 1) readonly buffer KeptGates { vec2 kept_gates[]; };
layout(binding = 2) buffer State { vec4 state[]; };
layout(binding = 3) writeonly buffer O { float o[]; };

layout(push_constant) uniform Push { uint state_offset, state_stride, kept_offset, kept_stride; };  // multiples of 4

const uint ROW_WORDS = Dk / 4u, WORDS = ROW_WORDS / LANES;  // words of 4 of a row of M, and of it those that one invocation holds
const uint C = 2u * Hk * Dk + Hv * Dv;

#include "kept_rows.glsl"

// SHARE invocations load the words of k or q that they need: each word i * SHARE + (its number among them) for i < LOADS.
#ifdef SHUFFLE
const uint SHARE = SUBGROUP;
#define HERE(loaded, i) subgroupShuffle(loaded[(i) / SHARE], (i) % SHARE)
#else
const uint SHARE = LANES;
#define HERE(loaded, i) loaded[i]
#endif
const uint LOADS = (ROW_WORDS + SHARE - 1u) / SHARE;

// Index in kept4 of word i of those that this invocation loads of a vector at `first`.
uint own_word(uint first, uint i) {
#ifdef SHUFFLE
    return first + min(i * SHARE + gl_SubgroupInvocationID, ROW_WORDS - 1u);
#else
    return first + i * SHARE + gl_LocalInvocationID.x % LANES;
#endif
}

// Sum over the LANES invocations that share a row; each gets it.
float row_sum(float v) {
    [[unroll]] for (uint m = 1; m < LANES; m *= 2u) v += subgroupShuffleXor(v, m);
    return v;
}

void main() {
    const uint h = gl_WorkGroupID.y, layer = gl_WorkGroupID.z, lane = gl_LocalInvocationID.x % LANES;
    const uint row0 = (gl_WorkGroupID.x * (LOCAL_SIZE / LANES) + gl_LocalInvocationID.x / LANES) * ROWS;
    const uint kept_at = kept_offset + layer * kept_stride;

    const uint at = (state_offset + layer * state_stride) / 4u + (h * Dv + row0) * ROW_WORDS + lane;
    vec4 m[ROWS * WORDS];
    [[unroll]] for (uint r = 0; r < ROWS; r++)
        [[unroll]] for (uint i = 0; i < WORDS; i++) m[r * WORDS + i] = state[at + r * ROW_WORDS + i * LANES];

    const uint waiting = step[WAITING], num_rows = waiting + step[NUM_TOKENS], new_row = step[KEPT_ROW], old_row = KEPT - new_row;
    const uint q_head = h % Hk * ROW_WORDS, k_head = q_head + Hk * ROW_WORDS, v_head = 2u * Hk * Dk + h * Dv + row0;
    [[dont_unroll]] for (uint t = 0;; t++) {
        if (t == waiting && waiting > 0u)  // all that is accepted
            [[unroll]] for (uint r = 0; r < ROWS; r++)
                [[unroll]] for (uint i = 0; i < WORDS; i++) state[at + r * ROW_WORDS + i * LANES] = m[r * WORDS + i];
        if (t == num_rows) break;

        const bool is_new = t >= waiting;
        const uint row = is_new ? new_row + t - waiting : old_row + t, qkv = qkv_at(kept_at, row);
        const vec2 gate = kept_gates[gates_at(kept_at, row) + h];
        const float decay = exp(gate.x);
        vec4 k[LOADS];
        [[unroll]] for (uint i = 0; i < LOADS; i++) k[i] = kept4[own_word(qkv + k_head, i)];
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            float mk = 0.0;
            [[unroll]] for (uint i = 0; i < WORDS; i++) {
                m[r * WORDS + i] *= decay;
                mk += dot(m[r * WORDS + i], HERE(k, i));
            }
            const float u = gate.y * (kept[4u * qkv + v_head + r] - row_sum(mk));
            [[unroll]] for (uint i = 0; i < WORDS; i++) m[r * WORDS + i] += u * HERE(k, i);
        }
        if (!is_new) continue;
        vec4 q[LOADS];
        [[unroll]] for (uint i = 0; i < LOADS; i++) q[i] = kept4[own_word(qkv + q_head, i)];
        [[unroll]] for (uint r = 0; r < ROWS; r++) {
            float mq = 0.0;
            [[unroll]] for (uint i = 0; i < WORDS; i++) mq += dot(m[r * WORDS + i], HERE(q, i));
            mq = row_sum(mq);
            if (lane == 0u) o[((t - waiting) * Hv + h) * Dv + row0 + r] = mq;
        }
    }
}
