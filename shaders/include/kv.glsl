const uint PAGE = 256u;  // slots of a page of the cache

// Four neighbouring cache values, float32 or packed halves.
#ifdef KV_F16
#include "halves.glsl"

#define KV_WORD uvec2
uvec2 kv_pack(vec4 v) { return pack_halves(v); }
vec4 kv_unpack(uvec2 w) { return vec4(unpackHalf2x16(w.x), unpackHalf2x16(w.y)); }
#else
#define KV_WORD vec4
vec4 kv_pack(vec4 v) { return v; }
vec4 kv_unpack(vec4 w) { return w; }
#endif
