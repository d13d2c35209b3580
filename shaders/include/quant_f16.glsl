// F16 and BF16. Unit: 64 weights, 8 planes of uvec4; plane p of a sub-block holds weights 8p..8p+7, two in each word.
const uint UNIT_SUBS = 2u, UNIT_WORDS = 32u;

struct Unit { uint lane; };
struct Sub { uint at; };

#if defined(WEIGHT_BF16)
vec2 halves(uint v) { return uintBitsToFloat(uvec2(v << 16, v & 0xffff0000u)); }
#else
vec2 halves(uint v) { return unpackHalf2x16(v); }
#endif

Unit load_unit(uint at, uint lane) { return Unit(lane); }
Sub load_sub(Unit u, uint at, uint j) { return Sub(at + j * 128u + u.lane); }

void next8(inout Sub s, out vec4 a, out vec4 b) {
    const uvec4 v = loaded(w4[s.at]);
    a = vec4(halves(v.x), halves(v.y));
    b = vec4(halves(v.z), halves(v.w));
    s.at += 32u;
}
