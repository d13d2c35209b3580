// Products of weights and activations that are summed in float32, for kernels that pass weights through shared memory.
//
//   WORD, WORDS     what COLUMNS neighbouring columns of a row are kept in, and four of those
//   x               [T', K / COLUMNS] in, at binding 2, by WORDS
//   words_of        8 weights in WORDs
//   add_products    sums of four rows and the products of an activation with them
//   row_factor      what the sums of a token are multiplied by at the end
//
// HALF: weights and activations are halves, two columns in a word. Weights are rounded to the nearest half here. Activations come rounded
// (half_row.glsl), a token's row times a power of two; at binding 4 lies what undoes that:
//
//   4  factors  [T]  f32  in
//
// By half_products.glsl, with DOT2 by an instruction for two of them.
#ifndef HALF
#define WORD float
#define WORDS vec4
const uint COLUMNS = 1u, WORDS_OF_8 = 8u;
layout(binding = 2) readonly buffer X { vec4 x[]; };

void words_of(vec4 a, vec4 b, out float words[WORDS_OF_8]) {
    [[unroll]] for (uint i = 0; i < 4u; i++) {
        words[i] = a[i];
        words[4u + i] = b[i];
    }
}

vec4 add_products(vec4 sums, float a, vec4 w) { return fma(vec4(a), w, sums); }

float row_factor(uint t) { return 1.0; }
#else
#define WORD uint
#define WORDS uvec4
const uint COLUMNS = 2u, WORDS_OF_8 = 4u;
layout(binding = 2) readonly buffer X { uvec4 x[]; };
layout(binding = 4) readonly buffer Factors { float factors[]; };

#include "half_products.glsl"

void words_of(vec4 a, vec4 b, out uint words[WORDS_OF_8]) {
    words[0] = pair(a.xy); words[1] = pair(a.zw); words[2] = pair(b.xy); words[3] = pair(b.zw);
}

vec4 add_products(vec4 sums, uint a, uvec4 w) {
    return vec4(add_product(sums.x, a, w.x), add_product(sums.y, a, w.y), add_product(sums.z, a, w.z), add_product(sums.w, a, w.w));
}

float row_factor(uint t) { return factors[t]; }
#endif
