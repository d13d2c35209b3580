// attention_scores: the scaled scores of chosen queries against all keys they see, before softmax.
//
//   0  step      [..]         u32   in   cache_len before this call, num_queries chosen of this call
//   1  q         [T, H, Dh]   f32   in
//   2  chosen    [Q, 2]       uvec2 in   (token of this call, row of `rows` that takes its scores)
//   3  pages     [..]         u32   in   page of the pool that holds slots 256 i .. 256 i + 255 of this cache
//   4  k_cache   as in kv.glsl  in   the rows of this call are already stored
//   5  rows      [.., H, stride]  f32  out  slots 0 .. cache_len + token; the rest is left as it is
//   6  part      [SPLITS, Q, H]   vec2 out  (maximum, sum of exponentials) of each split of the keys, for attention_rows
//   7  turns     [R / 2, stride]  vec2 in   NOPE: (cos, sin) of each slot's position * theta^(-2i / R)
//
// NOPE: scores of queries and keys as they were before head_norm_rope turned each by its own angles. A key is turned on by those between it
// and the query, cos(a - b) = cos a cos b + sin a sin b, sin(a - b) = sin a cos b - cos a sin b: both are turned alike then, and the product
// is that of both turned back.
//
// A score that is not finite becomes NaN, and so does the sum: the maximum may drop it. (Minus infinity would be a key left out.)
//
// A workgroup takes the query heads of one KV head and one split of the keys, an invocation every LOCAL_SIZE-th key.
// Grid: (SPLITS, G, Q). Reference: tests/reference/attention.py.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint HEADS = 4;  // query heads of one KV head
layout(constant_id = 2) const uint G = 2;
layout(constant_id = 3) const uint Dh = 256;
layout(constant_id = 4) const float SCALE = 0.0625;
layout(constant_id = 5) const uint SPLITS = 8;
#ifdef NOPE
layout(constant_id = 6) const uint R = 64;
#endif
layout(local_size_x_id = 0) in;

#include "finite.glsl"
#include "kv.glsl"
#include "reduce.glsl"

#include "step.glsl"
layout(binding = 1) readonly buffer Q { vec4 q[]; };
layout(binding = 2) readonly buffer Chosen { uvec2 chosen[]; };
layout(binding = 3) readonly buffer Pages { uint pages[]; };
layout(binding = 4) readonly buffer KCache { KV_WORD k_cache[]; };
layout(binding = 5) writeonly buffer Rows { float rows[]; };
layout(binding = 6) writeonly buffer Part { vec2 part[]; };
#ifdef NOPE
layout(binding = 7) readonly buffer Turns { vec2 turns[]; };
#endif

layout(push_constant) uniform Push { uint stride; };  // of a row

const uint D4 = Dh / 4u, H = HEADS * G;
const float NEVER = -1e30;  // below every score

// Values 4 d .. 4 d + 3 of the key in slot s, whose words begin at `key`, for a query in slot `own`.
vec4 key_word(uint key, uint d, uint s, uint own) {
    vec4 k = kv_unpack(k_cache[key + d * PAGE]);
#ifdef NOPE
    [[unroll]] for (uint e = 0; e < 4u; e++) {
        const uint i = 4u * d + e, other = i < R / 2u ? i + R / 2u : i - R / 2u;
        if (i < R) {
            const uint pair = min(i, other) * stride;
            const vec2 a = turns[pair + own], b = turns[pair + s], by = vec2(a.x * b.x + a.y * b.y, a.y * b.x - a.x * b.y);
            const float v = kv_unpack(k_cache[key + other / 4u * PAGE])[other % 4u];
            k[e] = k[e] * by.x + (i < other ? -v : v) * by.y;
        }
    }
#endif
    return k;
}

void main() {
    const uint split = gl_WorkGroupID.x, g = gl_WorkGroupID.y, j = gl_WorkGroupID.z, num_queries = step[NUM_QUERIES];
    if (j >= num_queries) return;
    const uint keys = step[CACHE_LEN] + chosen[j].x + 1u, per_split = (keys + SPLITS - 1u) / SPLITS;
    const uint own = keys - 1u, query = (chosen[j].x * H + g * HEADS) * D4, row = chosen[j].y * H + g * HEADS;

    float best[HEADS], sum[HEADS];
    [[unroll]] for (uint h = 0; h < HEADS; h++) {
        best[h] = NEVER;
        sum[h] = 0.0;
    }
    const uint end = min((split + 1u) * per_split, keys);
    [[dont_unroll]] for (uint s = split * per_split + gl_LocalInvocationID.x; s < end; s += LOCAL_SIZE) {
        const uint key = (pages[s / PAGE] * G + g) * D4 * PAGE + s % PAGE;
        float score[HEADS];
        [[unroll]] for (uint h = 0; h < HEADS; h++) score[h] = 0.0;
        [[dont_unroll]] for (uint d = 0; d < D4; d++) {
            const vec4 k = key_word(key, d, s, own);
            [[unroll]] for (uint h = 0; h < HEADS; h++) score[h] += dot(q[query + h * D4 + d], k);
        }
        [[unroll]] for (uint h = 0; h < HEADS; h++) {
            const float v = finite_or_nan(score[h] * SCALE), top = max(best[h], v);
            rows[(row + h) * stride + s] = v;
            sum[h] = sum[h] * exp(best[h] - top) + exp(v - top);
            best[h] = top;
        }
    }
    [[unroll]] for (uint h = 0; h < HEADS; h++) {
        const float top = workgroup_max(best[h]);
        const float total = workgroup_sum(sum[h] * exp(best[h] - top));
        if (gl_LocalInvocationID.x == 0u) part[(split * num_queries + j) * H + g * HEADS + h] = vec2(top, total);
    }
}
