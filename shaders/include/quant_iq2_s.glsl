// IQ2_S: weight = d (s + 1/2) / 4 * value, one s for 16 weights. Unit: 256 weights,
//   8 planes of uvec2: x = low 8 bits of the rows of the grid, byte p: of weights 8p..8p+7; y = signs (signed_values.glsl), all 32
//   1 plane of uvec4: x, y = high 2 bits of the rows, byte j, bits 2p, 2p+1: row p of sub-block j; z, w = byte j: s of its two halves
//   1 plane of words: d as half
const uint GRID_WORDS = 512u;  // 1024 rows of 8
#include "grid.glsl"
const uint HIGH_BITS = 2u;  // of a row's number, beyond the low 8
#include "iq2_rows.glsl"
const uint UNIT_SUBS = 8u, UNIT_WORDS = 21u;

struct Unit { uvec4 header; float d; uint lane; };

Unit load_unit(uint at, uint lane) {
    return Unit(loaded(w4[at + 128u + lane]), unpackHalf2x16(w1[(at + 160u) * 4u + lane]).x, lane);
}

Sub load_sub(Unit u, uint at, uint j) {
    const uvec2 q = loaded(w2[(at + j * 16u) * 2u + u.lane]), part = (j < 4u ? u.header.xz : u.header.yw) >> (8u * (j & 3u));
    const vec2 scale = u.d * (vec2(part.y & 15u, (part.y >> 4) & 15u) + 0.5) * 0.25;
    return Sub(q.x, part.x << 8, q.y, scale.xxyy);
}
