// IQ4_NL: weight = d * IQ4_VALUES[q]. Unit: 64 weights,
//   2 planes of uvec4: nibbles, as Q4_1
//   1 plane of words: d of both sub-blocks as halves
#include "iq4_values.glsl"
const uint UNIT_SUBS = 2u, UNIT_WORDS = 9u;

struct Unit { vec2 d; uint lane; };
struct Sub { uvec4 q; float scale; };

Unit load_unit(uint at, uint lane) { return Unit(unpackHalf2x16(w1[(at + 64u) * 4u + lane]), lane); }
Sub load_sub(Unit u, uint at, uint j) { return Sub(loaded(w4[at + j * 32u + u.lane]), j == 0u ? u.d.x : u.d.y); }

void next8(inout Sub s, out vec4 a, out vec4 b) {
    a = iq4_values(s.q.x) * s.scale - 128.0 * s.scale;
    b = iq4_values(s.q.x >> 4) * s.scale - 128.0 * s.scale;
    s.q = s.q.yzwx;
}
