// Q8_0: weight = d * (q - 128), q stored unsigned. Unit: 64 weights,
//   4 planes of uvec4: for each sub-block weights 8p..8p+3 (word p of the first), 8p+4..8p+7 (word p of the second)
//   1 plane of words: d of both sub-blocks as halves
#include "bytes.glsl"
const uint UNIT_SUBS = 2u, UNIT_WORDS = 17u;

struct Unit { vec2 d; uint lane; };
struct Sub { uvec4 qa, qb; float scale, bias; };

Unit load_unit(uint at, uint lane) { return Unit(unpackHalf2x16(w1[(at + 128u) * 4u + lane]), lane); }

Sub load_sub(Unit u, uint at, uint j) {
    const float d = j == 0u ? u.d.x : u.d.y;
    return Sub(loaded(w4[at + j * 64u + u.lane]), loaded(w4[at + j * 64u + 32u + u.lane]), d, -128.0 * d);
}

void next8(inout Sub s, out vec4 a, out vec4 b) {
    a = bytes(s.qa.x) * s.scale + s.bias;
    b = bytes(s.qb.x) * s.scale + s.bias;
    s.qa = s.qa.yzwx;
    s.qb = s.qb.yzwx;
}
