// Words of a buffer that are loaded four or two together.
//
// WIDE: as integers of 64 bits. A driver that puts the words of a load into vector registers one by one puts two at a time then; where
// each goes through memory (lavapipe's LLVM 15 on a CPU without AVX-512) that is most of a kernel's time. Needs shaderInt64.
#ifdef WIDE
#define WORDS4 u64vec2
#define WORDS2 uint64_t
#define FLOATS4 u64vec2
uvec4 loaded(u64vec2 v) { return uvec4(unpack32(v.x), unpack32(v.y)); }
uvec2 loaded(uint64_t v) { return unpack32(v); }
vec4 loaded_floats(u64vec2 v) { return uintBitsToFloat(loaded(v)); }
#else
#define WORDS4 uvec4
#define WORDS2 uvec2
#define FLOATS4 vec4
uvec4 loaded(uvec4 v) { return v; }
uvec2 loaded(uvec2 v) { return v; }
vec4 loaded_floats(vec4 v) { return v; }
#endif
