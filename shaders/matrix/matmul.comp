// matmul: y[t, first_row + n] = sum_k w[n, k] * x[t, k] for the rows n of one matrix part; ADD: added to what y holds.
//
//   0  step  [..]        u32  in      num_tokens, the rows of x in use this call
//   1  x     [T', K]     f32  in      T' = T rounded up to TM: the rows past T are read, their results dropped
//   2  w     [..]        at w_offset [rows', K]: weights of one part (include/weights.glsl), rows' = rows rounded up to 32
//   3  y     [T, N]      f32  out
//
// Each invocation owns TN rows of w and TM tokens. No shared memory: the address of an activation depends on nothing but
// gl_WorkGroupID and loop counters, so a GPU reads it once per wave into scalar registers, and a multiply-add has one scalar
// and one vector operand. Loops over K stay rolled: unrolled, compilers hoist the scalar loads of whole blocks and spill.
//
// Each row of w is two products along K ahead of the one before: AMD GPUs issue two multiply-adds at once if their vector
// operands lie in different register banks, and the same product of two rows mostly has both in one bank.
//
// Grid: (ceil(T / TM), ceil(rows / (LOCAL_SIZE * TN)), 1); token tiles are neighbours, so they share weights in the cache.
// Needs K % 32 = 0. Sums in f32. Reference: tests/reference/linear.py.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint TM = 4;
layout(constant_id = 2) const uint TN = 8;
layout(constant_id = 3) const uint ADD = 0;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer X { vec4 x[]; };
layout(binding = 2) readonly buffer W4 { uvec4 w4[]; };
layout(binding = 2) readonly buffer W2 { uvec2 w2[]; };
layout(binding = 2) readonly buffer W1 { uint w1[]; };
layout(binding = 3) buffer Y { float y[]; };

layout(push_constant) uniform Push { uint w_offset, rows, K, N, first_row; };  // w_offset in uvec4

#include "weights.glsl"

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
    float acc[TM * TN];
    [[unroll]] for (uint i = 0; i < TM * TN; i++) acc[i] = 0.0;

    uint xo = m0 * stride;
    [[dont_unroll]] for (uint left = subs; left > 0u;) {
        Unit unit[TN];
        [[unroll]] for (uint c = 0; c < TN; c++) unit[c] = load_unit(at[c], lane[c]);
        const uint here = min(left, UNIT_SUBS);
        [[dont_unroll]] for (uint j = 0; j < here; j++) {
            Sub sub[TN];
            [[unroll]] for (uint c = 0; c < TN; c++) sub[c] = load_sub(unit[c], at[c], j);
            [[dont_unroll]] for (uint p = 0; p < 4u; p++) {
                vec4 wa[TN], wb[TN];
                [[unroll]] for (uint c = 0; c < TN; c++) next8(sub[c], wa[c], wb[c]);
                [[unroll]] for (uint r = 0; r < TM; r++)
                    [[unroll]] for (uint i = 0; i < 8u; i++)
                        [[unroll]] for (uint c = 0; c < TN; c++) {
                            const uint k = (i + 2u * c) & 7u, o = r * TN + c;
                            const float w = k < 4u ? wa[c][k] : wb[c][k - 4u];
                            acc[o] = fma(x[xo + r * stride + k / 4u][k & 3u], w, acc[o]);
                        }
                xo += 2u;
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
