// float32 -> bits of the nearest half, ties to even, by integer arithmetic: the same bits on every driver.
//
// Not packHalf2x16: how it rounds is the driver's choice. RADV's goes toward zero, and where its result is used as 16-bit floats RADV may round
// all of these so, in the whole shader (FLOAT_MODE 0xcc instead of 0xc0). With 16-bit floats, packFloat2x16(f16vec2(..)) is right and does not.
#ifndef HALVES_GLSL
#define HALVES_GLSL

const uint HALF_OVERFLOW = 0x477ff000u;  // float32 65,520: from here on a value rounds to more than the greatest half, 65,504

// What half precision cannot hold becomes NaN, which shows in the results, as infinity need not: its product with a query can mean "never
// attend to this key".
uvec4 half_bits(vec4 v) {
    const uvec4 bits = floatBitsToUint(v), magnitude = bits & 0x7fffffffu, exponent = magnitude >> 23;
    const uvec4 normal = magnitude - (112u << 23), subnormal = (magnitude & 0x7fffffu) | 0x800000u;
    const uvec4 kept = mix(normal, subnormal, lessThan(exponent, uvec4(113)));
    // Below 2^-14 (exponent 113) halves have one bit less for each power of two. Below 2^-32 none is left, nor would the shift be defined.
    const uvec4 dropped = uvec4(max(126 - ivec4(max(exponent, 95u)), 13));
    // Half a unit of what is kept, less one where that is even: a tie moves only an odd one up.
    const uvec4 rounded = kept + (uvec4(1) << (dropped - 1u)) + (kept >> dropped & 1u) - 1u;
    const uvec4 nearest = mix(rounded >> dropped, uvec4(0x7e00), greaterThanEqual(magnitude, uvec4(HALF_OVERFLOW)));
    return nearest | (bits >> 16 & 0x8000u);
}

uvec2 pack_halves(vec4 v) {
    const uvec4 h = half_bits(v);
    return h.xz | h.yw << 16;
}
#endif
