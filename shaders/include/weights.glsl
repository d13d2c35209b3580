// Weights of one matrix part, in the layout that vkprefill/gguf/quants.py writes; at binding 1, its place in the push constants.
//
// 32 rows are interleaved: a plane holds one word (of any width) of each of 32 neighbouring rows, so neighbouring rows
// read neighbouring words. A unit is UNIT_SUBS sub-blocks of 32 weights, stored as UNIT_WORDS * 32 words.
//
// Every format gives
//   prepare_weights()              once, before all else, called by the whole workgroup
//   Unit   load_unit(at, lane)      what the sub-blocks of a unit share; at = row_start(n) + unit * UNIT_STRIDE, lane = n mod 32
//   Sub    load_sub(unit, at, j)    sub-block j of a unit
//   void   next8(sub, a, b)         the next 8 of its 32 weights, 4 in a and 4 in b; called 4 times
// Integer formats: weight = scale * q + bias with q unsigned.
//
// EXPERTS: the part is a slab of whole matrices, one for each of some experts; `expert`, counted from the slab's first, says which is read,
// the same one for a whole workgroup.

// One buffer, as words of 4, 2 and 1 x 32 bits.
#include "words.glsl"
layout(binding = 1) readonly buffer W4 { WORDS4 w4[]; };
layout(binding = 1) readonly buffer W2 { WORDS2 w2[]; };
layout(binding = 1) readonly buffer W1 { uint w1[]; };

layout(push_constant) uniform Push {
    uint w_offset;   // where the rows start in their buffer, in uvec4
    uint w_head;     // where the part starts: at the grid of a format that has one (grid.glsl), else at the rows
    uint rows;       // of the part; stored are those up to the next multiple of 32
    uint K;          // columns, a multiple of 32; of floats, of 16
    uint first_row;  // of the part in the matrix [N, K]
    uint N;
    uint add;        // of products: other than 0 where they are added to what y holds
#ifdef EXPERTS
    uint first_expert;   // of the slab
    uint experts;        // in the slab
    uint expert_stride;  // from one to the next, in uvec4
    uint own_rows;       // of matvec: other than 0 where each expert of a token has a row of x of its own
#endif
};

#if defined(WEIGHT_F32)
#include "quant_f32.glsl"
#elif defined(WEIGHT_F16) || defined(WEIGHT_BF16)
#include "quant_f16.glsl"
#elif defined(WEIGHT_Q8_0)
#include "quant_q8_0.glsl"
#elif defined(WEIGHT_Q4_1)
#include "quant_q4_1.glsl"
#elif defined(WEIGHT_Q5_1)
#include "quant_q5_1.glsl"
#elif defined(WEIGHT_IQ4_NL)
#include "quant_iq4_nl.glsl"
#elif defined(WEIGHT_IQ4_XS)
#include "quant_iq4_xs.glsl"
#elif defined(WEIGHT_MXFP4)
#include "quant_mxfp4.glsl"
#elif defined(WEIGHT_IQ2_XXS)
#include "quant_iq2_xxs.glsl"
#elif defined(WEIGHT_IQ2_XS)
#include "quant_iq2_xs.glsl"
#elif defined(WEIGHT_IQ2_S)
#include "quant_iq2_s.glsl"
#elif defined(WEIGHT_IQ3_XXS)
#include "quant_iq3_xxs.glsl"
#elif defined(WEIGHT_IQ3_S)
#include "quant_iq3_s.glsl"
#elif defined(WEIGHT_Q2_K)
#include "quant_q2_k.glsl"
#elif defined(WEIGHT_Q3_K)
#include "quant_q3_k.glsl"
#elif defined(WEIGHT_Q4_K)
#include "quant_q4_k.glsl"
#elif defined(WEIGHT_Q5_K)
#include "quant_q5_k.glsl"
#elif defined(WEIGHT_Q6_K)
#include "quant_q6_k.glsl"
#endif
#ifndef WEIGHTS_PREPARED
void prepare_weights() {}
#endif

const uint UNIT_STRIDE = UNIT_WORDS * 8u;  // in uvec4: 32 rows of UNIT_WORDS words

uint subs_of_row() { return (K + 31u) / 32u; }
uint units_of_row() { return (subs_of_row() + UNIT_SUBS - 1u) / UNIT_SUBS; }

// How many times 8 columns the sub-block has that starts at a column.
#if defined(WEIGHT_F32) || defined(WEIGHT_F16) || defined(WEIGHT_BF16)
uint eights(uint column) { return min(4u, (K - column) / 8u); }  // 2 in the last one of some rows; stored are zeros for the rest
#else
uint eights(uint column) { return 4u; }
#endif

// Where row n starts, in uvec4.
#ifdef EXPERTS
uint expert = 0u;
uint row_start(uint n) { return w_offset + expert * expert_stride + (n >> 5) * units_of_row() * UNIT_STRIDE; }
#else
uint row_start(uint n) { return w_offset + (n >> 5) * units_of_row() * UNIT_STRIDE; }
#endif

// A row that is stored: n, or the last of the padding for all after it, whose products are dropped.
uint stored_row(uint n) { return min(n, ((rows + 31u) & ~31u) - 1u); }
