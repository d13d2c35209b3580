// Header of the Q4_K and Q5_K units, one uvec4 for each row: x = d, dmin as halves; y = low 4 bits of the 8 scales,
// z = low 4 bits of the 8 mins, w = high 2 bits of the scales (bits 2j) and of the mins (bits 16 + 2j).
vec2 k_scale_bias(uvec4 header, uint j) {
    const uint sc = ((header.y >> (4u * j)) & 15u) | (((header.w >> (2u * j)) & 3u) << 4);
    const uint mn = ((header.z >> (4u * j)) & 15u) | (((header.w >> (16u + 2u * j)) & 3u) << 4);
    const vec2 d = unpackHalf2x16(header.x);
    return vec2(d.x * float(sc), -d.y * float(mn));
}
