// The four bytes of a word as floats 0..255.
vec4 bytes(uint v) {
    return vec4(float(v & 255u), float((v >> 8) & 255u), float((v >> 16) & 255u), float(v >> 24));
}
