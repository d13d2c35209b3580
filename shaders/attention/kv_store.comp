// kv_store: append the keys and values of this call to the cache, at slots cache_len + t.
//
//   0  step     [..]        u32  in   num_tokens, cache_len
//   1  k        [T, G, Dh]  f32  in
//   2  v        [T, G, Dh]  f32  in
//   3  pages    [..]        u32  in   page of the pool that holds slots 256 i .. 256 i + 255 of this cache
//   4  k_cache  as in kv.glsl    out
//   5  v_cache  as in kv.glsl    in out
//
// An invocation has four keys and values of SLOTS slots that share words: nobody else writes there, and 16-bit storage is not needed. In a
// half-precision cache it keeps the value of a token before this call's first, and writes zero behind the last one.
//
// Grid: (ceil(G * Dh / 4 / LOCAL_SIZE), SLOTS = 1: T, SLOTS = 2: T / 2 + 1 (pairs of slots, wherever the first lies), 1).
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
layout(binding = 5) buffer VCache { KV_SLOTS v_cache[]; };

void main() {
    const uint i = gl_GlobalInvocationID.x, D4 = Dh / 4u, begin = step[CACHE_LEN], end = begin + step[NUM_TOKENS];
    const uint slot = (begin / SLOTS + gl_WorkGroupID.y) * SLOTS;  // the first of this invocation's
    if (slot >= end || i >= G * D4) return;
    const uint g = i / D4, d = i % D4, head = pages[slot / PAGE] * G + g;
    for (uint s = max(slot, begin); s < min(slot + SLOTS, end); s++)
        k_cache[(head * D4 + d) * PAGE + s % PAGE] = kv_pack(k[(s - begin) * G * D4 + i]);
    const uint at = (head * PAGE + slot % PAGE) / SLOTS * D4 + d;
#ifdef KV_F16
    const uvec4 low = slot < begin ? v_cache[at] : half_bits(v[(slot - begin) * G * D4 + i]);
    const uvec4 high = slot + 1u < end ? half_bits(v[(slot + 1u - begin) * G * D4 + i]) : uvec4(0);
    v_cache[at] = bitfieldInsert(low, high, 16, 16);
#else
    v_cache[at] = v[(slot - begin) * G * D4 + i];
#endif
}
