// matmul_hybrid: matmul for GPUs with shared memory and scalar registers. y[t, first_row + n] = sum_k w[n, k] * x[t, k]; ADD:
// added to what y holds. Bindings are those of matmul.comp; the tile of a workgroup is LOCAL_SIZE rows of w by TM tokens.
//
// For every 32 columns the workgroup dequantises its rows into shared memory, one row for each invocation. Then a quarter of the
// invocations takes a quarter of the tokens, each two neighbouring rows in each half of the tile: what its neighbours read lies side
// by side. (Four neighbouring rows are read by two loads of 8 bytes in Mesa 26, with lanes 16 bytes apart: they meet in the same
// banks.) As in matmul.comp the address of an activation is the same for a whole wave: it depends on nothing but gl_WorkGroupID and
// loop counters, the quarter among them, which all invocations count through but compute in one of. So nothing is asked of subgroups;
// where a quarter is whole subgroups, each skips the three others' turns, where it is half a subgroup the halves take turns.
//
// Grid: (ceil(T / TM), ceil(rows / LOCAL_SIZE), 1). LOCAL_SIZE is a multiple of 4, TM of 4; x is read up to a multiple of TM / 4
// tokens. 128 * LOCAL_SIZE bytes of shared memory. Needs K % 32 = 0. Sums in f32. Reference: tests/reference/linear.py.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint LOCAL_SIZE = 128;
layout(constant_id = 1) const uint TM = 64;
layout(constant_id = 2) const uint ADD = 0;
layout(local_size_x_id = 0) in;

#include "step.glsl"
#include "weights.glsl"
layout(binding = 2) readonly buffer X { vec4 x[]; };
layout(binding = 3) buffer Y { float y[]; };

const uint TOKENS = TM / 4u;  // of one invocation

shared float tile[32u * LOCAL_SIZE];  // [column][row]

void main() {
    const uint m0 = gl_WorkGroupID.x * TM, num_tokens = step[NUM_TOKENS];
    if (m0 >= num_tokens) return;
    const uint local = gl_LocalInvocationID.x, quarter = local / (LOCAL_SIZE / 4u), two = local % (LOCAL_SIZE / 4u) * 2u;
    const uint n0 = gl_WorkGroupID.y * LOCAL_SIZE, quarters = min(4u, (num_tokens - m0 + TOKENS - 1u) / TOKENS);
    const uint stride = K / 4u;

    const uint n = stored_row(n0 + local);
    uint at = row_start(n);
    vec4 acc[TOKENS];
    [[unroll]] for (uint r = 0; r < TOKENS; r++) acc[r] = vec4(0.0);

    uint xo = m0 * stride;
    [[dont_unroll]] for (uint left = K / 32u; left > 0u;) {
        const Unit unit = load_unit(at, n & 31u);
        const uint here = min(left, UNIT_SUBS);
        [[dont_unroll]] for (uint j = 0; j < here; j++) {
            Sub sub = load_sub(unit, at, j);
            barrier();
            [[unroll]] for (uint p = 0; p < 4u; p++) {
                vec4 a, b;
                next8(sub, a, b);
                [[unroll]] for (uint i = 0; i < 4u; i++) {
                    tile[(p * 8u + i) * LOCAL_SIZE + local] = a[i];
                    tile[(p * 8u + 4u + i) * LOCAL_SIZE + local] = b[i];
                }
            }
            barrier();
            [[dont_unroll]] for (uint q = 0; q < quarters; q++) {
                if (q != quarter) continue;
                uint xq = xo + q * TOKENS * stride;
                [[dont_unroll]] for (uint p = 0; p < 4u; p++) {
                    vec4 w[8];
                    [[unroll]] for (uint i = 0; i < 8u; i++) {
                        const uint o = (p * 8u + i) * LOCAL_SIZE + two, h = o + LOCAL_SIZE / 2u;
                        w[i] = vec4(tile[o], tile[o + 1u], tile[h], tile[h + 1u]);
                    }
                    [[unroll]] for (uint r = 0; r < TOKENS; r++)
                        [[unroll]] for (uint u = 0; u < 2u; u++) {
                            const vec4 a = x[xq + r * stride + u];
                            [[unroll]] for (uint i = 0; i < 4u; i++) acc[r] = fma(vec4(a[i]), w[u * 4u + i], acc[r]);
                        }
                    xq += 2u;
                }
            }
            xo += 8u;
        }
        left -= here;
        at += UNIT_STRIDE;
    }

    [[unroll]] for (uint r = 0; r < TOKENS; r++) {
        const uint m = m0 + quarter * TOKENS + r;
        if (m >= num_tokens) break;
        [[unroll]] for (uint c = 0; c < 4u; c++) {
            const uint row = n0 + two + c % 2u + c / 2u * (LOCAL_SIZE / 2u);
            if (row >= rows) break;
            const uint o = m * N + first_row + row;
            y[o] = ADD != 0u ? y[o] + acc[r][c] : acc[r][c];
        }
    }
}
