// MXFP4: weight = 2^(e - 128) v, v twice a number of one sign bit, two bits of exponent and one of fraction. Unit: 128 weights,
//   4 planes of uvec4: the numbers as nibbles, as Q4_1
//   1 plane of words: e of the four sub-blocks
#include "bytes.glsl"
const uint UNIT_SUBS = 4u, UNIT_WORDS = 17u;

struct Unit { uint e; uint lane; };
struct Sub { uvec4 q; float scale; };

Unit load_unit(uint at, uint lane) { return Unit(w1[(at + 128u) * 4u + lane], lane); }

Sub load_sub(Unit u, uint at, uint j) {
    const uint e = (u.e >> (8u * j)) & 255u;  // of float32: e - 1; below that its numbers have leading zeros
    return Sub(loaded(w4[at + j * 32u + u.lane]), uintBitsToFloat(e < 2u ? 0x00200000u << e : (e - 1u) << 23));
}

// Nibbles in bytes as v with 12 added. By exponent, magnitudes are 0, 1, then 2, 3, then 4, 6, then 8, 12.
vec4 mxfp4_values(uint nibbles) {
    const uint four = (nibbles >> 2) & 0x01010101u, sign = (nibbles >> 3) & 0x01010101u;
    const uint low = nibbles & (four * 3u), both = low & (low >> 1) & 0x01010101u;  // of those from 4 on
    const uint magnitude = (nibbles & 0x07070707u) + low + (both << 1), negative = magnitude & (sign * 255u);
    return bytes(0x0c0c0c0cu + magnitude - (negative << 1));
}

void next8(inout Sub s, out vec4 a, out vec4 b) {
    a = mxfp4_values(s.q.x & 0x0f0f0f0fu) * s.scale - 12.0 * s.scale;
    b = mxfp4_values((s.q.x >> 4) & 0x0f0f0f0fu) * s.scale - 12.0 * s.scale;
    s.q = s.q.yzwx;
}
