// The 16 values of the IQ4 formats, as bytes with 128 added.
const uvec4 IQ4_VALUES = uvec4(0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u);

float iq4_value(uint nibble) {
    return float((IQ4_VALUES[nibble >> 2] >> ((nibble & 3u) * 8u)) & 255u) - 128.0;
}

// Four nibbles, one in each byte, as values.
vec4 iq4_values(uint v) {
    return vec4(iq4_value(v & 15u), iq4_value((v >> 8) & 15u), iq4_value((v >> 16) & 15u), iq4_value((v >> 24) & 15u));
}
