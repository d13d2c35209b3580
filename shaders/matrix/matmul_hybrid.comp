// matmul_hybrid: matmul for GPUs with shared memory and scalar registers. y[t, first_row + n] = sum_k w[n, k] * x[t, k]; add:
// added to what y holds. Bindings are those of matmul.comp; the tile of a workgroup is LOCAL_SIZE rows of w by TM tokens.
//
// For every 32 columns the workgroup dequantises its rows into shared memory, one row for each invocation. Then a quarter of the
// invocations takes a quarter of the tokens, each two neighbouring rows in each half of the tile: what its neighbours read lies side
// by side. (Four neighbouring rows are read by two loads of 8 bytes in Mesa 26, with lanes 16 bytes apart: they meet in the same
// banks.) As in matmul.comp the address of an activation is the same for a whole wave: it depends on nothing but gl_WorkGroupID and
// loop counters, the quarter among them, which all invocations count through but compute in one of. So nothing is asked of subgroups;
// where a quarter is whole subgroups, each skips the three others' turns, where it is half a subgroup the halves take turns.
//
// HALF: products of halves, weights and activations rounded, with one binding more (include/products.glsl).
//
// EXPERTS: as in matmul.comp; the tiles are at the binding after the others.
//
// Grid: (ceil(T / TM), ceil(rows / LOCAL_SIZE), 1), EXPERTS: (ceil(rows / LOCAL_SIZE), tiles, 1). LOCAL_SIZE is a multiple of 4, TM of 4; x is read up to a multiple of TM / 4 tokens.
// 128 * LOCAL_SIZE bytes of shared memory, HALF: half of that. Sums in f32. Reference: tests/reference/linear.py.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#ifdef DOT2
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_spirv_intrinsics : require
#endif

layout(constant_id = 0) const uint LOCAL_SIZE = 128;
layout(constant_id = 1) const uint TM = 64;
layout(local_size_x_id = 0) in;

#include "step.glsl"
#include "weights.glsl"
#include "products.glsl"
layout(binding = 3) buffer Y { float y[]; };
#ifdef EXPERTS
#ifdef HALF
#define TILES 5
#else
#define TILES 4
#endif
#include "expert_tile.glsl"
#endif

const uint TOKENS = TM / 4u;         // of one invocation
const uint LOADS = WORDS_OF_8 / 4u;  // of x, for 8 columns

shared WORD tile[4u * WORDS_OF_8 * LOCAL_SIZE];  // [32 / COLUMNS][row]

void main() {
#ifdef EXPERTS
    const uvec2 rows_here = tile_rows();
    const uint m0 = rows_here.x, num_tokens = rows_here.y, block = gl_WorkGroupID.x;
#else
    const uint m0 = gl_WorkGroupID.x * TM, num_tokens = step[NUM_TOKENS], block = gl_WorkGroupID.y;
#endif
    if (m0 >= num_tokens) return;
    prepare_weights();
    const uint local = gl_LocalInvocationID.x, quarter = local / (LOCAL_SIZE / 4u), two = local % (LOCAL_SIZE / 4u) * 2u;
    const uint n0 = block * LOCAL_SIZE, quarters = min(4u, (num_tokens - m0 + TOKENS - 1u) / TOKENS);
    const uint stride = K / (4u * COLUMNS);

    const uint n = stored_row(n0 + local);
    uint at = row_start(n);
    vec4 acc[TOKENS];
    [[unroll]] for (uint r = 0; r < TOKENS; r++) acc[r] = vec4(0.0);

    uint xo = m0 * stride, column = 0u;
    [[dont_unroll]] for (uint left = subs_of_row(); left > 0u;) {
        const Unit unit = load_unit(at, n & 31u);
        const uint here = min(left, UNIT_SUBS);
        [[dont_unroll]] for (uint j = 0; j < here; j++) {
            Sub sub = load_sub(unit, at, j);
            barrier();
            [[unroll]] for (uint p = 0; p < 4u; p++) {
                vec4 a, b;
                next8(sub, a, b);
                WORD words[WORDS_OF_8];
                words_of(a, b, words);
                [[unroll]] for (uint i = 0; i < WORDS_OF_8; i++) tile[(p * WORDS_OF_8 + i) * LOCAL_SIZE + local] = words[i];
            }
            barrier();
            [[dont_unroll]] for (uint q = 0; q < quarters; q++) {
                if (q != quarter) continue;
                uint xq = xo + q * TOKENS * stride;
                [[dont_unroll]] for (uint p = 0; p < eights(column); p++) {
                    WORDS w[WORDS_OF_8];
                    [[unroll]] for (uint i = 0; i < WORDS_OF_8; i++) {
                        const uint o = (p * WORDS_OF_8 + i) * LOCAL_SIZE + two, h = o + LOCAL_SIZE / 2u;
                        w[i] = WORDS(tile[o], tile[o + 1u], tile[h], tile[h + 1u]);
                    }
                    [[unroll]] for (uint r = 0; r < TOKENS; r++)
                        [[unroll]] for (uint u = 0; u < LOADS; u++) {
                            const WORDS a = x[xq + r * stride + u];
                            [[unroll]] for (uint i = 0; i < 4u; i++) acc[r] = add_products(acc[r], a[i], w[u * 4u + i]);
                        }
                    xq += LOADS;
                }
            }
            xo += 4u * LOADS;
            column += 32u;
        }
        left -= here;
        at += UNIT_STRIDE;
    }

    const uvec4 row = n0 + two + uvec4(0, 1, LOCAL_SIZE / 2u, LOCAL_SIZE / 2u + 1u);
    [[unroll]] for (uint r = 0; r < TOKENS; r++) {
        const uint m = m0 + quarter * TOKENS + r;
        if (m >= num_tokens) break;
        vec4 sums = acc[r] * row_factor(m);
        const uint o = m * N + first_row;
        if (add != 0u)
            [[unroll]] for (uint c = 0; c < 4u; c++)
                if (row[c] < rows) sums[c] += y[o + row[c]];
        [[unroll]] for (uint c = 0; c < 4u; c++)
            if (row[c] < rows) y[o + row[c]] = sums[c];
    }
}
