// F32. Unit: 64 weights, 16 planes of uvec4; weights 8p..8p+3 of a sub-block in plane 2p, 8p+4..8p+7 in plane 2p+1.
const uint UNIT_SUBS = 2u, UNIT_WORDS = 64u;

struct Unit { uint lane; };
struct Sub { uint at; };

Unit load_unit(uint at, uint lane) { return Unit(lane); }
Sub load_sub(Unit u, uint at, uint j) { return Sub(at + j * 256u + u.lane); }

void next8(inout Sub s, out vec4 a, out vec4 b) {
    a = uintBitsToFloat(loaded(w4[s.at]));
    b = uintBitsToFloat(loaded(w4[s.at + 32u]));
    s.at += 64u;
}
