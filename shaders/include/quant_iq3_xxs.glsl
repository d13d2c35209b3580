// IQ3_XXS: weight = d (s + 1/2) / 2 * value. Unit: 256 weights,
//   8 planes of uvec2: rows of the grid, byte p: of weights 8p..8p+3 (x), 8p+4..8p+7 (y)
//   8 planes of words: signs (signed_values.glsl), bits 28 to 31: s
//   1 plane of words: d as half
const uint GRID_WORDS = 256u;  // 256 rows of 4
#include "grid.glsl"
#include "signed_values.glsl"
const uint UNIT_SUBS = 8u, UNIT_WORDS = 25u;

struct Unit { float d; uint lane; };
struct Sub { uvec2 rows; uint signs; float scale; };

Unit load_unit(uint at, uint lane) { return Unit(unpackHalf2x16(w1[(at + 192u) * 4u + lane]).x, lane); }

Sub load_sub(Unit u, uint at, uint j) {
    const uint word = w1[(at + 128u + j * 8u) * 4u + u.lane];
    return Sub(loaded(w2[(at + j * 16u) * 2u + u.lane]), all_signs(word), u.d * (float(word >> 28) + 0.5) * 0.5);
}

void next8(inout Sub s, out vec4 a, out vec4 b) {
    a = signed_values(grid[s.rows.x & 255u], s.signs & 0x01010101u) * s.scale - 128.0 * s.scale;
    b = signed_values(grid[s.rows.y & 255u], (s.signs >> 4) & 0x01010101u) * s.scale - 128.0 * s.scale;
    s.rows >>= 8;
    s.signs >>= 1;
}
