// IQ2_XS: weight = d (s + 1/2) / 4 * value, one s for 16 weights. Unit: 256 weights,
//   8 planes of uvec2: x = low 8 bits of the rows of the grid, y = signs, as IQ2_XXS; bits 28 to 31 of y: s of the first 16 weights
//   1 plane of uvec2: x = ninth bits of the rows, bit 4j + p: row p of sub-block j; y = s of the second 16 weights, four bits each
//   1 plane of words: d as half
const uint GRID_WORDS = 256u;  // 512 rows of 8
#include "grid.glsl"
const uint HIGH_BITS = 1u;  // of a row's number, beyond the low 8
#include "iq2_rows.glsl"
const uint UNIT_SUBS = 8u, UNIT_WORDS = 19u;

struct Unit { uvec2 header; float d; uint lane; };

Unit load_unit(uint at, uint lane) {
    return Unit(loaded(w2[(at + 128u) * 2u + lane]), unpackHalf2x16(w1[(at + 144u) * 4u + lane]).x, lane);
}

Sub load_sub(Unit u, uint at, uint j) {
    const uvec2 q = loaded(w2[(at + j * 16u) * 2u + u.lane]), part = u.header >> (4u * j);
    const vec2 scale = u.d * (vec2(q.y >> 28, part.y & 15u) + 0.5) * 0.25;
    return Sub(q.x, part.x << 8, all_signs(q.y), scale.xxyy);
}
