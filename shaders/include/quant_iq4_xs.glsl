// IQ4_XS: weight = d * (ls - 32) * IQ4_VALUES[q]. Unit: 256 weights,
//   8 planes of uvec4: nibbles, as Q4_1
//   1 plane of uvec2: x = d as half, then the high 2 bits of the 8 scales ls; y = their low 4 bits
#include "iq4_values.glsl"
const uint UNIT_SUBS = 8u, UNIT_WORDS = 34u;

struct Unit { uvec2 header; uint lane; };
struct Sub { uvec4 q; float scale; };

Unit load_unit(uint at, uint lane) { return Unit(loaded(w2[(at + 256u) * 2u + lane]), lane); }

Sub load_sub(Unit u, uint at, uint j) {
    const uint ls = ((u.header.y >> (4u * j)) & 15u) | (((u.header.x >> (16u + 2u * j)) & 3u) << 4);
    return Sub(loaded(w4[at + j * 32u + u.lane]), unpackHalf2x16(u.header.x).x * (float(ls) - 32.0));
}

void next8(inout Sub s, out vec4 a, out vec4 b) {
    a = iq4_values(s.q.x) * s.scale - 128.0 * s.scale;
    b = iq4_values(s.q.x >> 4) * s.scale - 128.0 * s.scale;
    s.q = s.q.yzwx;
}
