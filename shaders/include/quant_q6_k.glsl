// Q6_K: weight = d sc (q - 32), one scale for 16 weights. Unit: 256 weights,
//   1 plane of uvec4: 16 signed scales
//   8 planes of uvec4: low nibbles, as Q4_K
//   8 planes of uvec2: high bits; byte c, bits 2p, 2p+1: weight 8p + c (x), 8p + 4 + c (y)
//   1 plane of words: d as half
#include "bytes.glsl"
const uint UNIT_SUBS = 8u, UNIT_WORDS = 53u;

struct Unit { uvec4 scales; float d; uint lane; };
struct Sub { uvec4 q; uvec2 h; vec4 scale; };  // scale: one for each call of next8

Unit load_unit(uint at, uint lane) {
    return Unit(loaded(w4[at + lane]), unpackHalf2x16(w1[(at + 416u) * 4u + lane]).x, lane);
}

Sub load_sub(Unit u, uint at, uint j) {
    const int two = int(u.scales[j >> 1] >> (16u * (j & 1u)));
    const float first = u.d * float(bitfieldExtract(two, 0, 8)), second = u.d * float(bitfieldExtract(two, 8, 8));
    return Sub(loaded(w4[at + 32u + j * 32u + u.lane]), loaded(w2[(at + 288u + j * 16u) * 2u + u.lane]), vec4(first, first, second, second));
}

void next8(inout Sub s, out vec4 a, out vec4 b) {
    a = bytes((s.q.x & 0x0f0f0f0fu) | ((s.h.x & 0x03030303u) << 4)) * s.scale.x - 32.0 * s.scale.x;
    b = bytes(((s.q.x >> 4) & 0x0f0f0f0fu) | ((s.h.y & 0x03030303u) << 4)) * s.scale.x - 32.0 * s.scale.x;
    s.q = s.q.yzwx;
    s.h >>= 2;
    s.scale = s.scale.yzwx;
}
