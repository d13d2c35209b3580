// IQ3_S: weight = d (2 s + 1) * value. Unit: 256 weights,
//   1 plane of uvec4: x, y = ninth bits of the rows, byte j, bit 2p: the first, bit 2p + 1: the second row p of sub-block j;
//     z = s, four bits each; w = d as half
//   8 planes of uvec2: low 8 bits of the rows of the grid, as IQ3_XXS
//   8 planes of words: signs (signed_values.glsl), all 32
const uint GRID_WORDS = 512u;  // 512 rows of 4
#include "grid.glsl"
#include "signed_values.glsl"
const uint UNIT_SUBS = 8u, UNIT_WORDS = 28u;

struct Unit { uvec4 header; uint lane; };
struct Sub { uvec2 rows; uint high, signs; float scale; };

Unit load_unit(uint at, uint lane) { return Unit(loaded(w4[at + lane]), lane); }

Sub load_sub(Unit u, uint at, uint j) {
    const uint high = (j < 4u ? u.header.x : u.header.y) >> (8u * (j & 3u)), s = (u.header.z >> (4u * j)) & 15u;
    const float scale = unpackHalf2x16(u.header.w).x * float(2u * s + 1u);
    return Sub(loaded(w2[(at + 32u + j * 16u) * 2u + u.lane]), high << 8, w1[(at + 160u + j * 8u) * 4u + u.lane], scale);
}

void next8(inout Sub s, out vec4 a, out vec4 b) {
    const uint first = (s.rows.x & 255u) | (s.high & 256u), second = (s.rows.y & 255u) | ((s.high >> 1) & 256u);
    a = signed_values(grid[first], s.signs & 0x01010101u) * s.scale - 128.0 * s.scale;
    b = signed_values(grid[second], (s.signs >> 4) & 0x01010101u) * s.scale - 128.0 * s.scale;
    s.rows >>= 8;
    s.high >>= 2;
    s.signs >>= 1;
}
