// matmul_shuffle: matmul for devices that pay for every lane of a load, also where all lanes read the same word, as Vulkan
// drivers for the CPU do. y[t, first_row + n] = sum_k w[n, k] * x[t, k]; ADD: added to what y holds. Bindings, padding and grid
// are those of matmul.comp, and so is the tile: each invocation owns TN rows of w and TM tokens.
//
// All lanes of a subgroup need the same 2 TM words of 4 activations for 8 multiply-adds along K. Each lane loads every SUBGROUPth
// of them, and a shuffle hands each to all: SUBGROUP times fewer loads.
//
// SUBGROUP is the device's subgroup size, of which LOCAL_SIZE and 2 TM are multiples. Needs K % 32 = 0. Sums in f32.
// Reference: tests/reference/linear.py.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_shuffle : require

layout(constant_id = 0) const uint LOCAL_SIZE = 16;
layout(constant_id = 1) const uint TM = 16;
layout(constant_id = 2) const uint TN = 8;
layout(constant_id = 3) const uint ADD = 0;
layout(constant_id = 4) const uint SUBGROUP = 8;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer X { vec4 x[]; };
layout(binding = 2) readonly buffer W4 { uvec4 w4[]; };
layout(binding = 2) readonly buffer W2 { uvec2 w2[]; };
layout(binding = 2) readonly buffer W1 { uint w1[]; };
layout(binding = 3) buffer Y { float y[]; };

layout(push_constant) uniform Push { uint w_offset, rows, K, N, first_row; };  // w_offset in uvec4

#include "weights.glsl"

const uint LOADS = 2u * TM / SUBGROUP;  // of one lane; word i of the tile is token i mod TM, half i / TM of the 8 columns

void main() {
    const uint m0 = gl_WorkGroupID.x * TM, num_tokens = step.num_tokens;
    if (m0 >= num_tokens) return;
    const uint n0 = gl_WorkGroupID.y * (LOCAL_SIZE * TN) + gl_LocalInvocationID.x;
    const uint stride = K / 4u, subs = K / 32u, units = (subs + UNIT_SUBS - 1u) / UNIT_SUBS;
    const uint last = ((rows + 31u) & ~31u) - 1u;

    uint at[TN], lane[TN];
    [[unroll]] for (uint c = 0; c < TN; c++) {
        const uint n = min(n0 + c * LOCAL_SIZE, last);
        at[c] = w_offset + row_start(n, units);
        lane[c] = n & 31u;
    }
    uint xo[LOADS];
    [[unroll]] for (uint i = 0; i < LOADS; i++) {
        const uint word = i * SUBGROUP + gl_SubgroupInvocationID;
        xo[i] = (m0 + word % TM) * stride + word / TM;
    }
    float acc[TM * TN];
    [[unroll]] for (uint i = 0; i < TM * TN; i++) acc[i] = 0.0;

    [[dont_unroll]] for (uint left = subs; left > 0u;) {
        Unit unit[TN];
        [[unroll]] for (uint c = 0; c < TN; c++) unit[c] = load_unit(at[c], lane[c]);
        const uint here = min(left, UNIT_SUBS);
        [[dont_unroll]] for (uint j = 0; j < here; j++) {
            Sub sub[TN];
            [[unroll]] for (uint c = 0; c < TN; c++) sub[c] = load_sub(unit[c], at[c], j);
            [[dont_unroll]] for (uint p = 0; p < 4u; p++) {
                vec4 words[LOADS];
                [[unroll]] for (uint i = 0; i < LOADS; i++) {
                    words[i] = x[xo[i]];
                    xo[i] += 2u;
                }
                vec4 wa[TN], wb[TN];
                [[unroll]] for (uint c = 0; c < TN; c++) next8(sub[c], wa[c], wb[c]);
                [[unroll]] for (uint word = 0; word < 2u * TM; word++) {
                    const uint r = word % TM;
                    const vec4 a = subgroupShuffle(words[word / SUBGROUP], word % SUBGROUP);
                    [[unroll]] for (uint c = 0; c < TN; c++) {
                        const vec4 w = word < TM ? wa[c] : wb[c];
                        float s = acc[r * TN + c];
                        s = fma(a.x, w.x, s); s = fma(a.y, w.y, s); s = fma(a.z, w.z, s); s = fma(a.w, w.w, s);
                        acc[r * TN + c] = s;
                    }
                }
            }
        }
        left -= here;
        [[unroll]] for (uint c = 0; c < TN; c++) at[c] += UNIT_STRIDE;
    }

    [[unroll]] for (uint r = 0; r < TM; r++) {
        if (m0 + r >= num_tokens) break;
        [[unroll]] for (uint c = 0; c < TN; c++) {
            const uint n = n0 + c * LOCAL_SIZE;
            if (n >= rows) continue;
            const uint o = (m0 + r) * N + first_row + n;
            y[o] = ADD != 0u ? y[o] + acc[r * TN + c] : acc[r * TN + c];
        }
    }
}
