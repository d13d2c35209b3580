// IQ2_XXS: weight = d (s + 1/2) / 4 * value. Unit: 256 weights,
//   8 planes of uvec2: x = rows of the grid, byte p: of weights 8p..8p+7; y = their signs (signed_values.glsl), bits 28 to 31: s
//   1 plane of words: d as half
const uint GRID_WORDS = 128u;  // 256 rows of 8
#include "grid.glsl"
#include "iq2_values.glsl"
const uint UNIT_SUBS = 8u, UNIT_WORDS = 17u;

struct Unit { float d; uint lane; };
struct Sub { uint rows, signs; float scale; };

Unit load_unit(uint at, uint lane) { return Unit(unpackHalf2x16(w1[(at + 128u) * 4u + lane]).x, lane); }

Sub load_sub(Unit u, uint at, uint j) {
    const uvec2 q = loaded(w2[(at + j * 16u) * 2u + u.lane]);
    return Sub(q.x, all_signs(q.y), u.d * (float(q.y >> 28) + 0.5) * 0.25);
}

void next8(inout Sub s, out vec4 a, out vec4 b) {
    iq2_values(s.rows & 255u, s.signs, a, b);
    a = a * s.scale - 128.0 * s.scale;
    b = b * s.scale - 128.0 * s.scale;
    s.rows >>= 8;
    s.signs >>= 1;
}
