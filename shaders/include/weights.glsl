// Weights of one matrix part, in the layout that vkprefill/quants.py writes.
//
// The shader declares the buffer three times at one binding, as words of 4, 2 and 1 x 32 bits: w4, w2, w1.
// 32 rows are interleaved: a plane holds one word (of any width) of each of 32 neighbouring rows, so neighbouring rows
// read neighbouring words. A unit is UNIT_SUBS sub-blocks of 32 weights, stored as UNIT_WORDS * 32 words.
//
// Every format gives
//   Unit   load_unit(at)            what the sub-blocks of a unit share; at = row_start(...) + unit * UNIT_STRIDE
//   Sub    load_sub(unit, at, j)    sub-block j of a unit
//   void   next8(sub, a, b)         the next 8 of its 32 weights, 4 in a and 4 in b; called 4 times
// Integer formats: weight = scale * q + bias with q unsigned.

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
#elif defined(WEIGHT_Q4_K)
#include "quant_q4_k.glsl"
#elif defined(WEIGHT_Q5_K)
#include "quant_q5_k.glsl"
#elif defined(WEIGHT_Q6_K)
#include "quant_q6_k.glsl"
#endif

const uint UNIT_STRIDE = UNIT_WORDS * 8u;  // in uvec4: 32 rows of UNIT_WORDS words

// Where row n of a matrix with `units` units per row starts, in uvec4.
uint row_start(uint n, uint units) { return (n >> 5) * units * UNIT_STRIDE; }
