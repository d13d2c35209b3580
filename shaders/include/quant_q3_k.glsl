// Q3_K: weight = d (sc - 32) (q - 4), one scale for 16 weights. Unit: 256 weights,
//   1 plane of uvec4: low 4 bits of the 16 scales, 0..3 and 8..11 in the nibbles of the bytes of x, 4..7 and 12..15 in those of y;
//     their high 2 bits, bits 2i, 2i+1 of byte c of z: scale 4i + c; w = d as half
//   8 planes of uvec2: low bits of the quants; byte c, bits 2p, 2p+1: weight 8p + c (x), 8p + 4 + c (y)
//   8 planes of words: third bits; byte c, bit p: weight 8p + c; bit 4 + p: weight 8p + 4 + c
#include "bytes.glsl"
const uint UNIT_SUBS = 8u, UNIT_WORDS = 28u;

struct Unit { uvec4 header; uint lane; };
struct Sub { uvec2 q; uint h; vec4 scale; };  // scale: one for each call of next8

Unit load_unit(uint at, uint lane) { return Unit(loaded(w4[at + lane]), lane); }

Sub load_sub(Unit u, uint at, uint j) {
    const uint first = 16u * (j & 1u);  // bit of the byte of scale 2j
    const uint low = ((j & 2u) == 0u ? u.header.x : u.header.y) >> (first + 4u * (j >> 2)), high = u.header.z >> (first + 2u * (j >> 1));
    const vec2 sc = vec2((low & 15u) | ((high & 3u) << 4), ((low >> 8) & 15u) | (((high >> 8) & 3u) << 4));
    const vec2 scale = unpackHalf2x16(u.header.w).x * (sc - 32.0);
    return Sub(loaded(w2[(at + 32u + j * 16u) * 2u + u.lane]), w1[(at + 160u + j * 8u) * 4u + u.lane], scale.xxyy);
}

void next8(inout Sub s, out vec4 a, out vec4 b) {
    a = bytes((s.q.x & 0x03030303u) | ((s.h << 2) & 0x04040404u)) * s.scale.x - 4.0 * s.scale.x;
    b = bytes((s.q.y & 0x03030303u) | ((s.h >> 2) & 0x04040404u)) * s.scale.x - 4.0 * s.scale.x;
    s.q >>= 2;
    s.h >>= 1;
    s.scale = s.scale.yzwx;
}
