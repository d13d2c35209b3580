// Q5_1, and Q5_0 stored as Q5_1 with m = -16 d: weight = d * q + m. Unit: 64 weights,
//   2 planes of uvec4: low nibbles, as Q4_1
//   2 planes of words: d, m of each sub-block as halves
//   2 planes of words: fifth bits; byte c, bit p: weight 8p + c; bit 4 + p: weight 8p + 4 + c
#include "bytes.glsl"
const uint UNIT_SUBS = 2u, UNIT_WORDS = 12u;

struct Unit { uint lane; };
struct Sub { uvec4 q; uint h; vec2 dm; };

Unit load_unit(uint at, uint lane) { return Unit(lane); }
Sub load_sub(Unit u, uint at, uint j) {
    const uint words = (at + 64u + j * 8u) * 4u + u.lane;
    return Sub(loaded(w4[at + j * 32u + u.lane]), w1[words + 64u], unpackHalf2x16(w1[words]));
}

void next8(inout Sub s, out vec4 a, out vec4 b) {
    a = bytes((s.q.x & 0x0f0f0f0fu) | ((s.h << 4) & 0x10101010u)) * s.dm.x + s.dm.y;
    b = bytes(((s.q.x >> 4) & 0x0f0f0f0fu) | (s.h & 0x10101010u)) * s.dm.x + s.dm.y;
    s.q = s.q.yzwx;
    s.h >>= 1;
}
