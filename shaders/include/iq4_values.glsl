// The 16 values of the IQ4 formats, as bytes with 128 added.
const uvec4 IQ4_VALUES = uvec4(0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u);

// The value of the four bits from bit `at` on.
float iq4_value(uint v, uint at) {
    const bool four = bitfieldExtract(v, int(at) + 2, 1) != 0u, eight = bitfieldExtract(v, int(at) + 3, 1) != 0u;
    const uint low = four ? IQ4_VALUES.y : IQ4_VALUES.x, high = four ? IQ4_VALUES.w : IQ4_VALUES.z;
    return float(bitfieldExtract(eight ? high : low, int((v >> at) & 3u) * 8, 8));
}

// The low nibbles of the four bytes of a word as values with 128 added.
vec4 iq4_values(uint v) { return vec4(iq4_value(v, 0u), iq4_value(v, 8u), iq4_value(v, 16u), iq4_value(v, 24u)); }
