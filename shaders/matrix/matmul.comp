// matmul: y[t, first_row + n] = sum_k w[n, k] * x[t, k] for the rows n of one matrix part; add: added to what y holds.
//
//   0  step  num_tokens, the rows of x in use this call
//   1  w     [..]     in      weights of one part [rows, K] (include/weights.glsl)
//   2  x     [T', K]  f32 in  T' = T rounded up to TM: the rows past T are read, their results dropped
//   3  y     [T, N]   f32 out
//
// Each invocation owns TN rows of w and TM tokens; all invocations need the same activations. No shared memory: the address of an
// activation depends on nothing but gl_WorkGroupID and loop counters, so a GPU reads it once per wave into scalar registers, and a
// multiply-add has one scalar and one vector operand. Loops over K stay rolled: unrolled, compilers hoist the scalar loads of whole
// blocks and spill. Each row of w is two products along K ahead of the one before: AMD GPUs issue two multiply-adds at once if their
// vector operands lie in different register banks, and the same product of two rows mostly has both in one bank.
//
// SHUFFLE: for devices that pay for every lane of a load, also where all lanes read the same word, as Vulkan drivers for the CPU do. Of
// the 2 TM words of 4 activations for 8 columns each lane loads every SUBGROUPth, and shuffles hand each to all: SUBGROUP times fewer
// loads. SUBGROUP is the device's subgroup size, of which LOCAL_SIZE and 2 TM are multiples. WIDE, with SHUFFLE: see words.glsl.
//
// EXPERTS: rows of x are those of experts, of which each tile has one (include/expert_tile.glsl, at binding 4); T' is a tile more than T.
//
// Grid: (ceil(T / TM), ceil(rows / (LOCAL_SIZE * TN)), 1), token tiles are neighbours, so they share weights in the cache.
// EXPERTS: (ceil(rows / ..), tiles, 1).
// Sums in f32. Reference: tests/reference/linear.py.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#ifdef SHUFFLE
#extension GL_KHR_shader_subgroup_shuffle : require
#endif
#ifdef WIDE
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#endif

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint TM = 4;
layout(constant_id = 2) const uint TN = 8;
#ifdef SHUFFLE
layout(constant_id = 3) const uint SUBGROUP = 8;
#endif
layout(local_size_x_id = 0) in;

#include "step.glsl"
#include "weights.glsl"
layout(binding = 2) readonly buffer X { FLOATS4 x[]; };
layout(binding = 3) buffer Y { float y[]; };
#ifdef EXPERTS
#define TILES 4
#include "expert_tile.glsl"
#endif

#ifdef SHUFFLE
const uint AHEAD = 0u;                 // products along K that a row of w is ahead of the one before
const uint LOADS = 2u * TM / SUBGROUP;  // of one lane; word i of the tile is token i mod TM, half i / TM of the 8 columns
#else
const uint AHEAD = 2u;
#endif

void main() {
#ifdef EXPERTS
    const uvec2 tile = tile_rows();
    const uint m0 = tile.x, num_tokens = tile.y, block = gl_WorkGroupID.x;
#else
    const uint m0 = gl_WorkGroupID.x * TM, num_tokens = step[NUM_TOKENS], block = gl_WorkGroupID.y;
#endif
    if (m0 >= num_tokens) return;
    prepare_weights();
    const uint n0 = block * (LOCAL_SIZE * TN) + gl_LocalInvocationID.x, stride = K / 4u;

    uint at[TN], lane[TN];
    [[unroll]] for (uint c = 0; c < TN; c++) {
        const uint n = stored_row(n0 + c * LOCAL_SIZE);
        at[c] = row_start(n);
        lane[c] = n & 31u;
    }
    float acc[TM * TN];
    [[unroll]] for (uint i = 0; i < TM * TN; i++) acc[i] = 0.0;

#ifdef SHUFFLE
    uint xo[LOADS];
    [[unroll]] for (uint i = 0; i < LOADS; i++) {
        const uint word = i * SUBGROUP + gl_SubgroupInvocationID;
        xo[i] = (m0 + word % TM) * stride + word / TM;
    }
#else
    uint xo = m0 * stride;
#endif
    uint column = 0u;
    [[dont_unroll]] for (uint left = subs_of_row(); left > 0u;) {
        Unit unit[TN];
        [[unroll]] for (uint c = 0; c < TN; c++) unit[c] = load_unit(at[c], lane[c]);
        const uint here = min(left, UNIT_SUBS);
        [[dont_unroll]] for (uint j = 0; j < here; j++) {
            Sub sub[TN];
            [[unroll]] for (uint c = 0; c < TN; c++) sub[c] = load_sub(unit[c], at[c], j);
            [[dont_unroll]] for (uint p = 0; p < eights(column); p++) {
#ifdef SHUFFLE
                vec4 words[LOADS];
                [[unroll]] for (uint i = 0; i < LOADS; i++) {
                    words[i] = loaded_floats(x[xo[i]]);
                    xo[i] += 2u;
                }
#endif
                vec4 wa[TN], wb[TN];
                [[unroll]] for (uint c = 0; c < TN; c++) next8(sub[c], wa[c], wb[c]);
                [[unroll]] for (uint r = 0; r < TM; r++) {
#ifdef SHUFFLE
                    const vec4 a = subgroupShuffle(words[r / SUBGROUP], r % SUBGROUP);
                    const vec4 b = subgroupShuffle(words[(TM + r) / SUBGROUP], (TM + r) % SUBGROUP);
#else
                    const vec4 a = x[xo + r * stride], b = x[xo + r * stride + 1u];
#endif
                    [[unroll]] for (uint i = 0; i < 8u; i++)
                        [[unroll]] for (uint c = 0; c < TN; c++) {
                            const uint k = (i + AHEAD * c) & 7u, o = r * TN + c;
                            acc[o] = fma(k < 4u ? a[k] : b[k - 4u], k < 4u ? wa[c][k] : wb[c][k - 4u], acc[o]);
                        }
                }
#ifndef SHUFFLE
                xo += 2u;
#endif
            }
            column += 32u;
        }
        left -= here;
        [[unroll]] for (uint c = 0; c < TN; c++) at[c] += UNIT_STRIDE;
    }

    [[unroll]] for (uint c = 0; c < TN; c++) {
        const uint n = n0 + c * LOCAL_SIZE;
        if (n >= rows) break;
        [[unroll]] for (uint r = 0; r < TM; r++) {
            if (m0 + r >= num_tokens) break;
            const uint o = (m0 + r) * N + first_row + n;
            if (add != 0u) acc[r * TN + c] += y[o];
            y[o] = acc[r * TN + c];
        }
    }
}
