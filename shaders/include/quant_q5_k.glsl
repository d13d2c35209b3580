// Q5_K: weight = (d sc) q - dmin mn. Unit: 256 weights,
//   1 plane of uvec4: header (k_header.glsl)
//   8 planes of uvec4: low nibbles, as Q4_K
//   8 planes of words: fifth bits; byte c, bit p: weight 8p + c; bit 4 + p: weight 8p + 4 + c
#include "bytes.glsl"
#include "k_header.glsl"
const uint UNIT_SUBS = 8u, UNIT_WORDS = 44u;

struct Unit { uvec4 header; uint lane; };
struct Sub { uvec4 q; uint h; vec2 dm; };

Unit load_unit(uint at, uint lane) { return Unit(loaded(w4[at + lane]), lane); }
Sub load_sub(Unit u, uint at, uint j) {
    return Sub(loaded(w4[at + 32u + j * 32u + u.lane]), w1[(at + 288u + j * 8u) * 4u + u.lane], k_scale_bias(u.header, j));
}

void next8(inout Sub s, out vec4 a, out vec4 b) {
    a = bytes((s.q.x & 0x0f0f0f0fu) | ((s.h << 4) & 0x10101010u)) * s.dm.x + s.dm.y;
    b = bytes(((s.q.x >> 4) & 0x0f0f0f0fu) | (s.h & 0x10101010u)) * s.dm.x + s.dm.y;
    s.q = s.q.yzwx;
    s.h >>= 1;
}
