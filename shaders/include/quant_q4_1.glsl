// Q4_1, and Q4_0 stored as Q4_1 with m = -8 d: weight = d * q + m. Unit: 64 weights,
//   2 planes of uvec4: nibbles; word p: weights 8p..8p+3 in the low, 8p+4..8p+7 in the high nibbles of its bytes
//   2 planes of words: d, m of each sub-block as halves
#include "bytes.glsl"
const uint UNIT_SUBS = 2u, UNIT_WORDS = 10u;

struct Unit { uint lane; };
struct Sub { uvec4 q; vec2 dm; };

Unit load_unit(uint at, uint lane) { return Unit(lane); }
Sub load_sub(Unit u, uint at, uint j) {
    return Sub(loaded(w4[at + j * 32u + u.lane]), unpackHalf2x16(w1[(at + 64u + j * 8u) * 4u + u.lane]));
}

void next8(inout Sub s, out vec4 a, out vec4 b) {
    a = bytes(s.q.x & 0x0f0f0f0fu) * s.dm.x + s.dm.y;
    b = bytes((s.q.x >> 4) & 0x0f0f0f0fu) * s.dm.x + s.dm.y;
    s.q = s.q.yzwx;
}
