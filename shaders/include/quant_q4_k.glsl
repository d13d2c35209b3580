// Q4_K: weight = (d sc) q - dmin mn. Unit: 256 weights,
//   1 plane of uvec4: header (k_header.glsl)
//   8 planes of uvec4: nibbles; word p: weights 8p..8p+3 in the low, 8p+4..8p+7 in the high nibbles of its bytes
#include "bytes.glsl"
#include "k_header.glsl"
const uint UNIT_SUBS = 8u, UNIT_WORDS = 36u;

struct Unit { uvec4 header; uint lane; };
struct Sub { uvec4 q; vec2 dm; };

Unit load_unit(uint at, uint lane) { return Unit(loaded(w4[at + lane]), lane); }
Sub load_sub(Unit u, uint at, uint j) { return Sub(loaded(w4[at + 32u + j * 32u + u.lane]), k_scale_bias(u.header, j)); }

void next8(inout Sub s, out vec4 a, out vec4 b) {
    a = bytes(s.q.x & 0x0f0f0f0fu) * s.dm.x + s.dm.y;
    b = bytes((s.q.x >> 4) & 0x0f0f0f0fu) * s.dm.x + s.dm.y;
    s.q = s.q.yzwx;
}
