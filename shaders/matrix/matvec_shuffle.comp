// matvec_shuffle: matvec for devices that pay for every lane of a load (see matmul_shuffle.comp). y[first_row + n] =
// sum_k w[n, k] * x[k]; ADD: added to what y holds. Bindings are those of matvec.comp. Each invocation owns TN rows.
//
// The 8 words of 4 activations of a sub-block are loaded by 8 lanes (in turns, where the subgroup has fewer) and handed to all
// by shuffles.
//
// Grid: (ceil(rows / (ROW_LANES * TN)), 1, 1). SUBGROUP is the device's subgroup size, of which ROW_LANES is a multiple; a power of
// two. Needs K % 32 = 0. Sums in f32. Reference: tests/reference/linear.py.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_shuffle : require

layout(constant_id = 0) const uint ROW_LANES = 16;
layout(constant_id = 1) const uint TN = 4;
layout(constant_id = 2) const uint ADD = 0;
layout(constant_id = 3) const uint SUBGROUP = 8;
layout(local_size_x_id = 0) in;

layout(binding = 0) readonly buffer X { vec4 x[]; };
layout(binding = 1) readonly buffer W4 { uvec4 w4[]; };
layout(binding = 1) readonly buffer W2 { uvec2 w2[]; };
layout(binding = 1) readonly buffer W1 { uint w1[]; };
layout(binding = 2) buffer Y { float y[]; };

layout(push_constant) uniform Push { uint w_offset, rows, K, first_row; };  // w_offset in uvec4

#include "weights.glsl"

const uint LANES = SUBGROUP < 8u ? SUBGROUP : 8u, LOADS = 8u / LANES;

void main() {
    const uint n0 = gl_WorkGroupID.x * (ROW_LANES * TN) + gl_LocalInvocationID.x;
    const uint subs = K / 32u, units = (subs + UNIT_SUBS - 1u) / UNIT_SUBS;
    const uint last = ((rows + 31u) & ~31u) - 1u;

    uint at[TN], lane[TN];
    float acc[TN];
    [[unroll]] for (uint c = 0; c < TN; c++) {
        const uint n = min(n0 + c * ROW_LANES, last);
        at[c] = w_offset + row_start(n, units);
        lane[c] = n & 31u;
        acc[c] = 0.0;
    }

    uint xo = gl_SubgroupInvocationID % LANES;
    [[dont_unroll]] for (uint left = subs; left > 0u;) {
        Unit unit[TN];
        [[unroll]] for (uint c = 0; c < TN; c++) unit[c] = load_unit(at[c], lane[c]);
        const uint here = min(left, UNIT_SUBS);
        [[dont_unroll]] for (uint j = 0; j < here; j++) {
            Sub sub[TN];
            [[unroll]] for (uint c = 0; c < TN; c++) sub[c] = load_sub(unit[c], at[c], j);
            vec4 words[LOADS];
            [[unroll]] for (uint i = 0; i < LOADS; i++) words[i] = x[xo + i * LANES];
            xo += 8u;
            [[unroll]] for (uint word = 0; word < 8u; word += 2u) {
                const vec4 a = subgroupShuffle(words[word / LANES], word % LANES);
                const vec4 b = subgroupShuffle(words[(word + 1u) / LANES], (word + 1u) % LANES);
                [[unroll]] for (uint c = 0; c < TN; c++) {
                    vec4 wa, wb;
                    next8(sub[c], wa, wb);
                    float s = acc[c];
                    s = fma(a.x, wa.x, s); s = fma(a.y, wa.y, s); s = fma(a.z, wa.z, s); s = fma(a.w, wa.w, s);
                    s = fma(b.x, wb.x, s); s = fma(b.y, wb.y, s); s = fma(b.z, wb.z, s); s = fma(b.w, wb.w, s);
                    acc[c] = s;
                }
            }
        }
        left -= here;
        [[unroll]] for (uint c = 0; c < TN; c++) at[c] += UNIT_STRIDE;
    }

    [[unroll]] for (uint c = 0; c < TN; c++) {
        const uint n = n0 + c * ROW_LANES;
        if (n < rows) y[first_row + n] = ADD != 0u ? y[first_row + n] + acc[c] : acc[c];
    }
}
