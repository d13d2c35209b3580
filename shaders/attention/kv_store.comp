// kv_store: append the keys and values of this call to the cache, at slots cache_len + t.
//
//   0  step     [..]             u32  in   num_tokens, cache_len
//   1  k        [T, G, Dh]       f32  in
//   2  v        [T, G, Dh]       f32  in
//   3  pages    [..]             u32  in   page of the pool that holds slots 256 i .. 256 i + 255 of this cache
//   4  k_cache  [pages, G, Dh / 4, 256]  KV words of 4 values: neighbouring slots are neighbours, as lanes over keys read them
//   5  v_cache  [pages, G, 256, Dh / 4]  KV words of 4 values: a row is contiguous, as lanes over values read it
//
// Grid: (ceil(G * Dh / 4 / LOCAL_SIZE), T, 1).
#version 450
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint G = 2;
layout(constant_id = 2) const uint Dh = 256;
layout(local_size_x_id = 0) in;

#include "kv.glsl"

#include "step.glsl"
layout(binding = 1) readonly buffer K { vec4 k[]; };
layout(binding = 2) readonly buffer V { vec4 v[]; };
layout(binding = 3) readonly buffer Pages { uint pages[]; };
layout(binding = 4) writeonly buffer KCache { KV_WORD k_cache[]; };
layout(binding = 5) writeonly buffer VCache { KV_WORD v_cache[]; };

void main() {
    const uint i = gl_GlobalInvocationID.x, t = gl_WorkGroupID.y, D4 = Dh / 4u;
    if (t >= step[NUM_TOKENS] || i >= G * D4) return;
    const uint slot = step[CACHE_LEN] + t, g = i / D4, d = i % D4, head = pages[slot / PAGE] * G + g;
    k_cache[(head * D4 + d) * PAGE + slot % PAGE] = kv_pack(k[t * G * D4 + i]);
    v_cache[(head * PAGE + slot % PAGE) * D4 + d] = kv_pack(v[t * G * D4 + i]);
}
