// Products of pairs of halves that are summed in float32; the low half of a word comes first.
//
//   pair         two floats -> halves in a word, rounded to nearest
//   add_product  a sum, and the two products of a pair with another
//
// DOT2: by the instruction of VK_VALVE_shader_mixed_float_dot_product, which makes two multiply-adds. Without it the same two, low half
// first: a product of halves is exact in float32, so each rounds once, fused or not, and both builds give the same sums.
#ifdef DOT2
spirv_instruction(extensions = ["SPV_VALVE_mixed_float_dot_product"], capabilities = [6912], id = 6916)
float dot2(f16vec2 a, f16vec2 b, float sum);

uint pair(vec2 v) { return packFloat2x16(f16vec2(v)); }

float add_product(float sum, uint a, uint b) { return dot2(unpackFloat2x16(a), unpackFloat2x16(b), sum); }

#else
#include "halves.glsl"

uint pair(vec2 v) { return pack_halves(vec4(v, 0.0, 0.0)).x; }

float add_product(float sum, uint a, uint b) {
    const vec2 pa = unpackHalf2x16(a), pb = unpackHalf2x16(b);
    return fma(pa.y, pb.y, fma(pa.x, pb.x, sum));
}
#endif
