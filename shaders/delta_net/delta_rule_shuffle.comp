// delta_rule_shuffle: delta_rule for devices that pay for every lane of a load (see matmul_shuffle.comp). Maths, bindings and
// state are those of delta_rule.comp.
//
// Each invocation holds a whole row of M. All lanes need the same words of k and q: each loads every SUBGROUPth of them, and
// shuffles hand them to all.
//
// Grid: (Dv / LOCAL_SIZE, Hv, 1), which must divide; Dk a multiple of 4. SUBGROUP is the device's subgroup size, of which LOCAL_SIZE is
// a multiple; a power of two. Reference: tests/reference/delta_rule.py.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_shuffle : require

layout(constant_id = 0) const uint LOCAL_SIZE = 8;
layout(constant_id = 1) const uint SUBGROUP = 8;
layout(constant_id = 2) const uint Hk = 16;
layout(constant_id = 3) const uint Hv = 16;
layout(constant_id = 4) const uint Dk = 128;
layout(constant_id = 5) const uint Dv = 128;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer QKV { float qkv[]; };
layout(binding = 1) readonly buffer QKV4 { vec4 qkv4[]; };
layout(binding = 2) readonly buffer Gates { vec2 gates[]; };
layout(binding = 3) buffer State { vec4 state[]; };
layout(binding = 4) writeonly buffer O { float o[]; };

layout(push_constant) uniform Push { uint state_offset; };  // a multiple of 4

const uint WORDS = Dk / 4u;                             // words of 4 of a row
const uint LOADS = (WORDS + SUBGROUP - 1u) / SUBGROUP;  // of k, and of q, by one lane
const uint C = 2u * Hk * Dk + Hv * Dv;

void main() {
    const uint h = gl_WorkGroupID.y, lane = gl_SubgroupInvocationID;
    const uint row = gl_WorkGroupID.x * LOCAL_SIZE + gl_LocalInvocationID.x;

    const uint at = state_offset / 4u + (h * Dv + row) * WORDS;
    vec4 m[WORDS];
    [[unroll]] for (uint i = 0; i < WORDS; i++) m[i] = state[at + i];

    const uint num_tokens = step.num_tokens, q_head = h % Hk * Dk, k_head = q_head + Hk * Dk, v_head = 2u * Hk * Dk + h * Dv;
    [[dont_unroll]] for (uint t = 0; t < num_tokens; t++) {
        const vec2 gate = gates[t * Hv + h];
        const float decay = exp(gate.x);
        vec4 k[LOADS], q[LOADS];
        float kq = 0.0;
        [[unroll]] for (uint i = 0; i < LOADS; i++) {
            const uint word = i * SUBGROUP + lane, at_most = min(word, WORDS - 1u);
            k[i] = qkv4[(t * C + k_head) / 4u + at_most];
            q[i] = qkv4[(t * C + q_head) / 4u + at_most];
            kq += word < WORDS ? dot(k[i], q[i]) : 0.0;
        }
        [[unroll]] for (uint mask = 1; mask < SUBGROUP; mask *= 2u) kq += subgroupShuffleXor(kq, mask);

        float mk = 0.0, mq = 0.0;  // M k and M q of this row, after the decay
        [[unroll]] for (uint i = 0; i < WORDS; i++) {
            m[i] *= decay;
            mk += dot(m[i], subgroupShuffle(k[i / SUBGROUP], i % SUBGROUP));
            mq += dot(m[i], subgroupShuffle(q[i / SUBGROUP], i % SUBGROUP));
        }
        const float u = gate.y * (qkv[t * C + v_head + row] - mk);
        [[unroll]] for (uint i = 0; i < WORDS; i++) m[i] += u * subgroupShuffle(k[i / SUBGROUP], i % SUBGROUP);
        o[(t * Hv + h) * Dv + row] = mq + u * kq;  // (M + u k^T) q
    }

    [[unroll]] for (uint i = 0; i < WORDS; i++) state[at + i] = m[i];
}
