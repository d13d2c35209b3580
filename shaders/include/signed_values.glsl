// Magnitudes with signs apart, as the IQ2 and IQ3 formats have them.
#include "bytes.glsl"

// The four bytes of v, each below 128, as values with 128 added; negative: bit 0 of each byte says whether its value is.
vec4 signed_values(uint v, uint negative) {
    const uint all = (negative << 8) - negative;  // all bits of a byte
    return bytes((v ^ all ^ 0x80808080u) + negative);
}

// Signs of a sub-block, byte c, bit p: weight 8p + c; bit 4 + p: weight 8p + 4 + c. An even number of each 8 is negative, so those of
// weights 8p + 7 are not stored: in their place, bits 28 to 31, lies something else.
uint all_signs(uint word) {
    const uint stored = word & 0x0fffffffu, halves = stored ^ (stored >> 16), quarters = halves ^ (halves >> 8);
    return stored | ((quarters ^ (quarters >> 4)) << 28);
}
