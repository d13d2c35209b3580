// Q2_K: weight = (d sc) q - dmin mn, a scale and a minimum for 16 weights. Unit: 256 weights,
//   1 plane of uvec4: 16 bytes, sc in the low and mn in the high nibble
//   8 planes of uvec2: quants; byte c, bits 2p, 2p+1: weight 8p + c (x), 8p + 4 + c (y)
//   1 plane of words: d, dmin as halves
#include "bytes.glsl"
const uint UNIT_SUBS = 8u, UNIT_WORDS = 21u;

struct Unit { uvec4 scales; vec2 d; uint lane; };
struct Sub { uvec2 q; vec4 scale, bias; };  // scale, bias: one for each call of next8

Unit load_unit(uint at, uint lane) {
    return Unit(loaded(w4[at + lane]), unpackHalf2x16(w1[(at + 160u) * 4u + lane]), lane);
}

Sub load_sub(Unit u, uint at, uint j) {
    const uint two = u.scales[j >> 1] >> (16u * (j & 1u));
    const vec2 scale = u.d.x * vec2(two & 15u, (two >> 8) & 15u), bias = -u.d.y * vec2((two >> 4) & 15u, (two >> 12) & 15u);
    return Sub(loaded(w2[(at + 32u + j * 16u) * 2u + u.lane]), scale.xxyy, bias.xxyy);
}

void next8(inout Sub s, out vec4 a, out vec4 b) {
    a = bytes(s.q.x & 0x03030303u) * s.scale.x + s.bias.x;
    b = bytes(s.q.y & 0x03030303u) * s.scale.x + s.bias.x;
    s.q >>= 2;
    s.scale = s.scale.yzwx;
    s.bias = s.bias.yzwx;
}
