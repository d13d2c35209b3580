// Keys and values in the cache: float32, or halves. Keys of neighbouring slots are neighbours, as lanes over keys read them, a row of
// values is contiguous, as lanes over values read it:
//
//   keys    [pages, G, Dh / 4, 256] words of 4 values
//   values  [pages, G, 256, Dh / 4] words of 4 values;  halves: [pages, G, 128, Dh, 2], value by value those of slots 2 i and 2 i + 1
//
// So a load of 16 bytes has four values of SLOTS neighbouring slots, of keys and of values, and products of pairs of halves find theirs in
// one word. Of a pair of slots with one key the other is zeros, or the next token's key would be read before it is there.
const uint PAGE = 256u;  // slots of a page of the cache

#ifdef KV_F16
#include "halves.glsl"

const uint SLOTS = 2u;
#define KV_WORD uvec2
#define KV_SLOTS uvec4
uvec2 kv_pack(vec4 v) { return pack_halves(v); }
vec4 kv_unpack(uvec2 w) { return vec4(unpackHalf2x16(w.x), unpackHalf2x16(w.y)); }

// Of the i-th slot: its four keys; its four values.
vec4 key_of(uvec4 w, uint i) { return i == 0u ? kv_unpack(w.xy) : kv_unpack(w.zw); }
vec4 value_of(uvec4 w, uint i) {
    return vec4(unpackHalf2x16(w.x)[i], unpackHalf2x16(w.y)[i], unpackHalf2x16(w.z)[i], unpackHalf2x16(w.w)[i]);
}
#else
const uint SLOTS = 1u;
#define KV_WORD vec4
#define KV_SLOTS vec4
vec4 kv_pack(vec4 v) { return v; }
vec4 kv_unpack(vec4 w) { return w; }
vec4 key_of(vec4 w, uint i) { return w; }
vec4 value_of(vec4 w, uint i) { return w; }
#endif
