// A sub-block of the IQ2 formats whose grids have more than 256 rows: HIGH_BITS of each row's number lie beside its low 8 bits.
#include "iq2_values.glsl"

struct Sub { uint rows, high, signs; vec4 scale; };  // high: those of the next row in bits 8 and up; scale: one for each call of next8

void next8(inout Sub s, out vec4 a, out vec4 b) {
    iq2_values((s.rows & 255u) | (s.high & (((1u << HIGH_BITS) - 1u) << 8)), s.signs, a, b);
    a = a * s.scale.x - 128.0 * s.scale.x;
    b = b * s.scale.x - 128.0 * s.scale.x;
    s.rows >>= 8;
    s.high >>= HIGH_BITS;
    s.signs >>= 1;
    s.scale = s.scale.yzwx;
}
