const uint PAGE = 256u;  // slots of a page of the cache

// Four neighbouring cache values, float32 or packed halves.
#ifdef KV_F16
#define KV_WORD uvec2

const float HALF_OVERFLOW = 65520.0;  // from here on a value rounds to more than the greatest half, 65,504

// What half precision cannot hold becomes NaN, which shows in the results. Drivers differ in what they would make of it: infinity, whose
// product with a query can mean "never attend to this key", or the greatest half.
uint kv_pair(vec2 v) {
    uint word = packHalf2x16(v);
    if (!(abs(v.x) < HALF_OVERFLOW)) word |= 0x7e00u;
    if (!(abs(v.y) < HALF_OVERFLOW)) word |= 0x7e000000u;
    return word;
}
uvec2 kv_pack(vec4 v) { return uvec2(kv_pair(v.xy), kv_pair(v.zw)); }
vec4 kv_unpack(uvec2 w) { return vec4(unpackHalf2x16(w.x), unpackHalf2x16(w.y)); }
#else
#define KV_WORD vec4
vec4 kv_pack(vec4 v) { return v; }
vec4 kv_unpack(vec4 w) { return w; }
#endif
