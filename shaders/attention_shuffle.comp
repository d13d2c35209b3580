// attention: causal grouped-query softmax attention over the cache, one pass over the keys (online softmax).
//
//   0  step     [..]             u32  in   word 0 = num_tokens, word 1 = cache_len before this call
//   1  q        [T, H, Dh]       f32  in
//   2  pages    [..]             u32  in   page of the pool that holds slots 256 i .. 256 i + 255 of this cache
//   3  k_cache  [pages, G, Dh / 4, 256]  in   KV words; the rows of this call are already stored
//   4  v_cache  [pages, G, 256, Dh / 4]  in
//   5  y        [T, H, Dh]       f32  out  SPLITS > 1: [SPLITS, T, H, Dh], each split normalised by its own sum
//   6  part     [SPLITS, T, H]   vec2 out  SPLITS > 1: (maximum, sum of exponentials) of the split, for attention_merge
//
// Query head h reads KV head h / (H / G). The query of token t sees slots 0 .. cache_len + t: positions increase, so the order of the
// slots is the order of the positions. A workgroup takes TQ rows, a row being one (token, head of the group), and all
// keys of its split in tiles of LOCAL_SIZE * KP, a divisor of the page: first lanes over keys (scores), then lanes over the head's values (weighted sum).
//
// Grid: (ceil(T * H / G / TQ), G, SPLITS). Nothing grows with T x S. Source: online softmax, Milakov & Gimelshein 2018 (arXiv 1805.02867);
// FlashAttention, Dao et al. 2022 (arXiv 2205.14135). Reference: tests/reference/attention.py.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_shuffle : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint H = 8;
layout(constant_id = 2) const uint G = 2;
layout(constant_id = 3) const uint Dh = 256;
layout(constant_id = 4) const float SCALE = 0.0625;
layout(constant_id = 5) const uint SPLITS = 1;
layout(constant_id = 6) const uint TQ = 8;
layout(constant_id = 7) const uint KP = 4;  // keys of an invocation in a tile
layout(constant_id = 8) const uint DV = 1;  // words of 4 values of an invocation: ceil(Dh / 4 / LOCAL_SIZE)
layout(constant_id = 9) const uint SUBGROUP = 8;
layout(local_size_x_id = 0) in;

#include "kv.glsl"
#include "reduce.glsl"

layout(binding = 0) readonly buffer Step { uint step_words[]; };
layout(binding = 1) readonly buffer Q { vec4 q[]; };
layout(binding = 2) readonly buffer Pages { uint pages[]; };
layout(binding = 3) readonly buffer KCache { KV_WORD k_cache[]; };
layout(binding = 4) readonly buffer VCache { KV_WORD v_cache[]; };
layout(binding = 5) writeonly buffer Y { vec4 y[]; };
layout(binding = 6) writeonly buffer Part { vec2 part[]; };

const uint TILE = LOCAL_SIZE * KP, D4 = Dh / 4u, HEADS = H / G;  // HEADS: query heads of one KV head
const uint SUBGROUPS = (LOCAL_SIZE + 3u) / 4u;  // at most: no subgroup is smaller than 4
const uint LOADS = (TQ + SUBGROUP - 1u) / SUBGROUP;  // rows of which one lane loads what all lanes need
const float NEVER = -1e30;  // below every score

shared vec4 probs[TQ * TILE / 4u];
shared float maxima[TQ * SUBGROUPS];

void main() {
    const uint lane = gl_LocalInvocationID.x, g = gl_WorkGroupID.y, num_tokens = step_words[0], cache_len = step_words[1];
    const uint first = gl_WorkGroupID.x * TQ, rows = num_tokens * HEADS;
    if (first >= rows) return;

    uint row_q[TQ], limit[TQ];  // where a row's query starts; its last visible slot
    uint own_q[LOADS], own_row[LOADS];
    [[unroll]] for (uint r = 0; r < TQ; r++) {
        const uint row = min(first + r, rows - 1u), t = row / HEADS;
        row_q[r] = (t * H + g * HEADS + row % HEADS) * D4;
        limit[r] = cache_len + t;
    }
    [[unroll]] for (uint i = 0; i < LOADS; i++) {
        own_row[i] = min(i * SUBGROUP + gl_SubgroupInvocationID, TQ - 1u);
        const uint row = min(first + own_row[i], rows - 1u);
        own_q[i] = (row / HEADS * H + g * HEADS + row % HEADS) * D4;
    }
    const uint keys = limit[TQ - 1u] + 1u;  // rows are in token order: the last sees most
    const uint per_split = (keys + SPLITS * TILE - 1u) / (SPLITS * TILE) * TILE;
    const uint begin = gl_WorkGroupID.z * per_split, end = min(begin + per_split, keys);

    float best[TQ], sum[TQ];
    vec4 acc[TQ * DV];
    [[unroll]] for (uint r = 0; r < TQ; r++) {
        best[r] = NEVER;
        sum[r] = 0.0;
        [[unroll]] for (uint c = 0; c < DV; c++) acc[r * DV + c] = vec4(0.0);
    }

    [[dont_unroll]] for (uint tile = begin; tile < end; tile += TILE) {
        // Scores: this invocation has the keys tile + lane + c * LOCAL_SIZE.
        const uint head = pages[tile / PAGE] * G + g, in_page = tile % PAGE, last = end - 1u - tile;
        float s[TQ * KP];
        uint key[KP];
        [[unroll]] for (uint i = 0; i < TQ * KP; i++) s[i] = 0.0;
        [[unroll]] for (uint c = 0; c < KP; c++) key[c] = head * D4 * PAGE + in_page + min(lane + c * LOCAL_SIZE, last);
        [[dont_unroll]] for (uint d = 0; d < D4; d++) {
            vec4 k[KP];
            [[unroll]] for (uint c = 0; c < KP; c++) k[c] = kv_unpack(k_cache[key[c] + d * PAGE]);
            vec4 words[LOADS];
            [[unroll]] for (uint i = 0; i < LOADS; i++) words[i] = q[own_q[i] + d];
            [[unroll]] for (uint r = 0; r < TQ; r++) {
                const vec4 a = subgroupShuffle(words[r / SUBGROUP], r % SUBGROUP);
                [[unroll]] for (uint c = 0; c < KP; c++) {
                    float v = s[r * KP + c];
                    v = fma(a.x, k[c].x, v); v = fma(a.y, k[c].y, v); v = fma(a.z, k[c].z, v); v = fma(a.w, k[c].w, v);
                    s[r * KP + c] = v;
                }
            }
        }
        // Probabilities relative to the running maximum.
        [[unroll]] for (uint r = 0; r < TQ; r++) {
            float top = NEVER;
            [[unroll]] for (uint c = 0; c < KP; c++) {
                const uint slot = tile + lane + c * LOCAL_SIZE;
                const float v = slot <= limit[r] && slot < end ? s[r * KP + c] * SCALE : NEVER;
                s[r * KP + c] = v;
                top = max(top, v);
            }
            top = subgroupMax(top);
            if (subgroupElect()) maxima[r * SUBGROUPS + gl_SubgroupID] = top;
        }
        barrier();
        [[unroll]] for (uint r = 0; r < TQ; r++) {
            float top = best[r];
            for (uint i = 0; i < gl_NumSubgroups; i++) top = max(top, maxima[r * SUBGROUPS + i]);
            const float fade = exp(best[r] - top);
            best[r] = top;
            sum[r] *= fade;
            [[unroll]] for (uint c = 0; c < DV; c++) acc[r * DV + c] *= fade;
            [[unroll]] for (uint c = 0; c < KP; c++) {
                // While a row has seen no visible key, top is NEVER too: its weights must be 0, not exp(0).
                const float p = s[r * KP + c] > NEVER ? exp(s[r * KP + c] - top) : 0.0;
                sum[r] += p;
                const uint i = lane + c * LOCAL_SIZE;
                probs[(r * TILE + i) / 4u][i & 3u] = p;
            }
        }
        barrier();
        // Weighted sum: this invocation has the words lane + c * LOCAL_SIZE of the head's values.
        [[dont_unroll]] for (uint j = 0; j < min(TILE, last + 1u); j += 4u) {
            vec4 v[4 * DV];
            [[unroll]] for (uint i = 0; i < 4u; i++) {
                const uint value = (head * PAGE + in_page + min(j + i, last)) * D4;
                [[unroll]] for (uint c = 0; c < DV; c++) v[i * DV + c] = kv_unpack(v_cache[value + min(lane + c * LOCAL_SIZE, D4 - 1u)]);
            }
            vec4 words[LOADS];
            [[unroll]] for (uint i = 0; i < LOADS; i++) words[i] = probs[(own_row[i] * TILE + j) / 4u];
            [[unroll]] for (uint r = 0; r < TQ; r++) {
                const vec4 p = subgroupShuffle(words[r / SUBGROUP], r % SUBGROUP);
                [[unroll]] for (uint c = 0; c < DV; c++) {
                    vec4 a = acc[r * DV + c];
                    a = fma(vec4(p.x), v[c], a); a = fma(vec4(p.y), v[DV + c], a);
                    a = fma(vec4(p.z), v[2u * DV + c], a); a = fma(vec4(p.w), v[3u * DV + c], a);
                    acc[r * DV + c] = a;
                }
            }
        }
        barrier();
    }

    [[unroll]] for (uint r = 0; r < TQ; r++) {
        const float total = workgroup_sum(sum[r]);
        if (first + r >= rows) continue;
        const uint o = gl_WorkGroupID.z * num_tokens * H * D4 + row_q[r];
        [[unroll]] for (uint c = 0; c < DV; c++)
            if (lane + c * LOCAL_SIZE < D4) y[o + lane + c * LOCAL_SIZE] = total > 0.0 ? acc[r * DV + c] / total : vec4(0.0);
        if (SPLITS > 1u && lane == 0u) part[gl_WorkGroupID.z * num_tokens * H + row_q[r] / D4] = vec2(best[r], total);
    }
}
