// attention: causal grouped-query softmax attention over the cache, one pass over the keys (online softmax).
//
//   0  step     [..]             u32  in   num_tokens, cache_len before this call
//   1  q        [T', H, Dh]      f32  in   T' = T rounded up to 32: the rows past T are read, their results dropped
//      HALF:    [T', H, Dh / 2]  u32  in   halves, two in a word, times SCALE
//   2  pages    [..]             u32  in   page of the pool that holds slots 256 i .. 256 i + 255 of this cache
//   3  k_cache  as in kv.glsl         in   the rows of this call are already stored
//   4  v_cache  as in kv.glsl         in
//   5  y        [T, H, Dh]       f32  out  SPLITS > 1: [SPLITS, T, H, Dh], each split normalised by its own sum
//   6  part     [SPLITS, T, H]   vec2 out  SPLITS > 1: (maximum, sum of exponentials) of the split, for attention_merge
//
// Splits that no query of the call sees a key of are not written.
//
// Query head h reads KV head h / (H / G). The query of token t sees slots 0 .. cache_len + t: positions increase, so the order of the
// slots is the order of the positions. A workgroup takes TQ rows (a divisor of 32, or all there are), a row being one (token, head of the
// group), and every SPLITS-th tile of keys, of LOCAL_SIZE * KP, a divisor of the page: first lanes over keys (scores), then lanes over the
// head's values (weighted sum). So which keys meet in a sum, and in which order, is the same whatever comes after the row's own token, and
// keys that a row does not see add zeros: with LOCAL_SIZE, KP and SPLITS the same, a row's bits do not depend on the rows beside it.
//
// For AMD's compiler: the address of a query depends on nothing but gl_WorkGroupID and loop counters, so that queries are scalars. No
// subgroup arithmetic, which would keep larger workgroups from waves of 32. Keys and values are multiplied as they are loaded: a mere
// conversion from half precision goes into each multiply-add, of a kind that cannot issue in pairs. In the weighted sum the four values of
// a word begin with different keys of four: products with different probabilities are neighbours, and more of them issue in pairs.
//
// HALF: products of halves with float32 sums (half_products.glsl), for a half-precision cache and one split. Queries come rounded, with
// SCALE in them (head_norm_rope.comp). Probabilities are rounded here, times 2^15, which the sums have too: so none that is more than
// 2^-29 of the greatest loses a bit to being subnormal. Their sum is that of the rounded ones. DOT2: in workgroups and subgroups of at least 2 TQ, where each
// lane reads the pair of probabilities of one row and two keys, and broadcasts hand them on: AMD's compiler makes scalars of them, and so
// all products issue in pairs.
//
// SHUFFLE: for devices that pay for every lane of a load (see matmul.comp). Of the queries and probabilities that all lanes
// need, each lane loads those of its own rows, and shuffles hand them on. SUBGROUP is the device's subgroup size.
//
// Grid: (ceil(T * H / G / TQ), G, SPLITS). Nothing grows with T x S. Source: online softmax, Milakov & Gimelshein 2018 (arXiv 1805.02867);
// FlashAttention, Dao et al. 2022 (arXiv 2205.14135). Reference: tests/reference/attention.py.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#if defined(SHUFFLE) || defined(DOT2)
#extension GL_KHR_shader_subgroup_shuffle : require
#endif
#ifdef DOT2
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_spirv_intrinsics : require
#endif

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint H = 8;
layout(constant_id = 2) const uint G = 2;
layout(constant_id = 3) const uint Dh = 256;
layout(constant_id = 4) const float SCALE = 0.0625;
layout(constant_id = 5) const uint SPLITS = 1;
layout(constant_id = 6) const uint TQ = 8;
layout(constant_id = 7) const uint KP = 4;  // keys of an invocation in a tile, a multiple of SLOTS
layout(constant_id = 8) const uint DV = 1;  // words of 4 values of an invocation: ceil(Dh / 4 / LOCAL_SIZE)
// Loads on their way before the first is used: words of each key, a divisor of Dh / 4; keys whose values these are, a multiple of 4 and a
// divisor of the tile.
layout(constant_id = 9) const uint KEY_WORDS = 1;
layout(constant_id = 10) const uint VALUE_KEYS = 4;
#ifdef SHUFFLE
layout(constant_id = 11) const uint SUBGROUP = 8;
#endif
layout(local_size_x_id = 0) in;

#include "kv.glsl"

#include "step.glsl"
#ifdef HALF
#include "half_products.glsl"
#define FOUR uvec2  // numbers of a query or a key
#else
#define FOUR vec4
#endif
layout(binding = 1) readonly buffer Q { FOUR q[]; };
layout(binding = 2) readonly buffer Pages { uint pages[]; };
layout(binding = 3) readonly buffer KCache { KV_SLOTS k_cache[]; };
layout(binding = 4) readonly buffer VCache { KV_SLOTS v_cache[]; };
layout(binding = 5) writeonly buffer Y { vec4 y[]; };
layout(binding = 6) writeonly buffer Part { vec2 part[]; };

const uint TILE = LOCAL_SIZE * KP, D4 = Dh / 4u, HEADS = H / G;  // HEADS: query heads of one KV head
const uint LANE_WORDS = LOCAL_SIZE / 4u;  // words of 4 that hold a number of each invocation
const float NEVER = -1e30;  // below every score

#ifdef HALF
shared uint pairs_of_probs[TQ * TILE / 2u];  // probabilities [TQ, TILE]
shared vec4 probs[TQ * LOCAL_SIZE / 4u];     // a number of each invocation [TQ, LOCAL_SIZE]
#else
shared vec4 probs[TQ * TILE / 4u];  // probabilities [TQ, TILE]; before them and in the end a number of each invocation [TQ, LOCAL_SIZE]
#endif
shared vec2 row_stat[TQ];  // maximum so far; what the sums so far shrink by since this tile raised it, in the end their total

// In the tile, the c-th key of an invocation: those of one word are neighbours.
uint key_at(uint lane, uint c) { return SLOTS * (lane + c / SLOTS * LOCAL_SIZE) + c % SLOTS; }

#ifdef HALF
const float UNSCALE = 1.0;               // what results are multiplied by, beside their sum
const float LIFT = 10.3972077083991796;  // log(2^15)

uvec2 factor_of(KV_SLOTS w, uint i) { return i == 0u ? w.xy : w.zw; }

float add_score(float s, uvec2 a, uvec2 k) { return add_product(add_product(s, a.x, k.x), a.y, k.y); }
#else
const float UNSCALE = SCALE;

vec4 factor_of(KV_SLOTS w, uint i) { return key_of(w, i) * SCALE; }

float add_score(float s, vec4 a, vec4 k) { return fma(a.w, k.w, fma(a.z, k.z, fma(a.y, k.y, fma(a.x, k.x, s)))); }
#endif

void main() {
    const uint lane = gl_LocalInvocationID.x, g = gl_WorkGroupID.y, num_tokens = step[NUM_TOKENS], cache_len = step[CACHE_LEN];
    const uint first = gl_WorkGroupID.x * TQ, rows = num_tokens * HEADS;
    if (first >= rows) return;

    // The first row is head `skip` of the group at token t0; a row's query starts at q0 + row_q.
    const uint t0 = first / HEADS, skip = TQ % HEADS == 0u ? 0u : first % HEADS, q0 = (t0 * H + g * HEADS) * D4;
    uint row_t[TQ], row_q[TQ];
    [[unroll]] for (uint r = 0; r < TQ; r++) {
        row_t[r] = (skip + r) / HEADS;
        row_q[r] = (row_t[r] * H + (skip + r) % HEADS) * D4;
    }
#ifdef SHUFFLE
    const uint LOADS = (TQ + SUBGROUP - 1u) / SUBGROUP;  // rows of a lane
    uint own_row[LOADS], own_q[LOADS];
    [[unroll]] for (uint i = 0; i < LOADS; i++) {
        own_row[i] = min(i * SUBGROUP + gl_SubgroupInvocationID, TQ - 1u);
        own_q[i] = ((skip + own_row[i]) / HEADS * H + (skip + own_row[i]) % HEADS) * D4;
    }
    vec4 own[LOADS];
#endif
    const uint keys = cache_len + min(t0 + row_t[TQ - 1u] + 1u, num_tokens);  // rows are in token order: the last sees most
    const uint begin = gl_WorkGroupID.z * TILE;
    if (begin >= keys) return;

#ifdef HALF
    // Twice the half 1. Compilers must not know that, or take the floats that were rounded for the halves, and the constant for one of the
    // instruction's own, which holds one half or two, depending on the assembler.
    const uint ones = 0x3c003c00u + (num_tokens >> 31);
#endif
    float sum[TQ];
    vec4 acc[TQ * DV];
    [[unroll]] for (uint r = 0; r < TQ; r++) sum[r] = 0.0;
    [[unroll]] for (uint i = 0; i < TQ * DV; i++) acc[i] = vec4(0.0);
    for (uint r = lane; r < TQ; r += LOCAL_SIZE) row_stat[r].x = NEVER;

    [[dont_unroll]] for (uint tile = begin; tile < keys; tile += SPLITS * TILE) {
        // Scores: this invocation has the keys tile + key_at(lane, c), which lie in words lane, lane + LOCAL_SIZE, ...
        const uint head = pages[tile / PAGE] * G + g, in_page = tile % PAGE, last = keys - 1u - tile;
        float s[TQ * KP];
        uint key[KP / SLOTS];
        [[unroll]] for (uint i = 0; i < TQ * KP; i++) s[i] = 0.0;
        [[unroll]] for (uint c = 0; c < KP / SLOTS; c++)
            key[c] = (head * D4 * PAGE + in_page) / SLOTS + min(lane + c * LOCAL_SIZE, last / SLOTS);
        [[dont_unroll]] for (uint d = 0; d < D4; d += KEY_WORDS) {
            KV_SLOTS words[KEY_WORDS * KP / SLOTS];
            [[unroll]] for (uint i = 0; i < KEY_WORDS; i++)
                [[unroll]] for (uint c = 0; c < KP / SLOTS; c++) words[i * KP / SLOTS + c] = k_cache[key[c] + (d + i) * (PAGE / SLOTS)];
            [[unroll]] for (uint i = 0; i < KEY_WORDS; i++) {
                FOUR k[KP];
                [[unroll]] for (uint c = 0; c < KP; c++) k[c] = factor_of(words[(i * KP + c) / SLOTS], c % SLOTS);
#ifdef SHUFFLE
                [[unroll]] for (uint l = 0; l < LOADS; l++) own[l] = q[q0 + d + i + own_q[l]];
#endif
                [[unroll]] for (uint r = 0; r < TQ; r++) {
#ifdef SHUFFLE
                    const vec4 a = subgroupShuffle(own[r / SUBGROUP], r % SUBGROUP);
#else
                    const FOUR a = q[q0 + d + i + row_q[r]];
#endif
                    [[unroll]] for (uint c = 0; c < KP; c++) s[r * KP + c] = add_score(s[r * KP + c], a, k[c]);
                }
            }
        }
        // The running maximum of each row.
        [[unroll]] for (uint r = 0; r < TQ; r++) {
            const uint limit = min(cache_len + t0 + row_t[r] + 1u, keys);
            float top = NEVER;
            [[unroll]] for (uint c = 0; c < KP; c++) {
                // Far below NEVER: while a row has seen no visible key, which makes NEVER its maximum, its weights are 0.
                const float v = tile + key_at(lane, c) < limit ? s[r * KP + c] : 2.0 * NEVER;
                s[r * KP + c] = v;
                top = max(top, v);
            }
            probs[r * LANE_WORDS + lane / 4u][lane & 3u] = top;
        }
        barrier();
        for (uint r = lane; r < TQ; r += LOCAL_SIZE) {
            vec4 top = vec4(row_stat[r].x);
            // Each row starts elsewhere, so that the invocations read different banks.
            for (uint i = 0; i < LANE_WORDS; i++) top = max(top, probs[r * LANE_WORDS + (r + i) % LANE_WORDS]);
            const float best = max(max(top.x, top.y), max(top.z, top.w));
            row_stat[r] = vec2(best, best == row_stat[r].x ? 1.0 : exp(row_stat[r].x - best));  // exp(0) need not be exactly 1
        }
        barrier();
        // Probabilities relative to it.
        [[unroll]] for (uint r = 0; r < TQ; r++) {
            const float best = row_stat[r].x, fade = row_stat[r].y;
            sum[r] *= fade;
            [[unroll]] for (uint c = 0; c < DV; c++) acc[r * DV + c] *= fade;
#ifdef HALF
            [[unroll]] for (uint c = 0; c < KP; c += 2u) {
                const uint p = pair(exp(vec2(s[r * KP + c], s[r * KP + c + 1u]) - (best - LIFT)));
                sum[r] = add_product(sum[r], p, ones);
                pairs_of_probs[r * TILE / 2u + key_at(lane, c) / 2u] = p;
            }
#else
            [[unroll]] for (uint c = 0; c < KP; c++) {
                const float p = exp(s[r * KP + c] - best);
                sum[r] += p;
                const uint i = key_at(lane, c);
                probs[(r * TILE + i) / 4u][i & 3u] = p;
            }
#endif
        }
        barrier();
        // Weighted sum: this invocation has the words lane + c * LOCAL_SIZE of the head's values, not HALF: times SCALE.
        [[dont_unroll]] for (uint j0 = 0; j0 < min(TILE, last + 1u); j0 += VALUE_KEYS) {
            KV_SLOTS words[VALUE_KEYS / SLOTS * DV];
            [[unroll]] for (uint i = 0; i < VALUE_KEYS / SLOTS; i++) {
                const uint value = (head * PAGE + in_page + min(j0 + i * SLOTS, last)) / SLOTS * D4;
                [[unroll]] for (uint c = 0; c < DV; c++) words[i * DV + c] = v_cache[value + min(lane + c * LOCAL_SIZE, D4 - 1u)];
            }
            [[unroll]] for (uint four = 0; four < VALUE_KEYS; four += 4u) {
                const uint j = j0 + four;
#ifdef HALF
#ifdef DOT2
                const uint own = pairs_of_probs[(gl_SubgroupInvocationID / 2u % TQ * TILE + j) / 2u + gl_SubgroupInvocationID % 2u];
#endif
                [[unroll]] for (uint r = 0; r < TQ; r++)
                    [[unroll]] for (uint i = 0; i < 2u; i++) {
#ifdef DOT2
                        const uint p = subgroupShuffle(own, 2u * r + i);
#else
                        const uint p = pairs_of_probs[(r * TILE + j) / 2u + i];
#endif
                        [[unroll]] for (uint c = 0; c < DV; c++)
                            [[unroll]] for (uint e = 0; e < 4u; e++)
                                acc[r * DV + c][e] = add_product(acc[r * DV + c][e], p, words[(four / 2u + i) * DV + c][e]);
                    }
#else
                vec4 v[4 * DV];
                [[unroll]] for (uint i = 0; i < 4u; i++)
                    [[unroll]] for (uint c = 0; c < DV; c++) v[i * DV + c] = value_of(words[(four + i) / SLOTS * DV + c], i % SLOTS) * SCALE;
#ifdef SHUFFLE
                [[unroll]] for (uint l = 0; l < LOADS; l++) own[l] = probs[(own_row[l] * TILE + j) / 4u];
#endif
                [[unroll]] for (uint r = 0; r < TQ; r++) {
#ifdef SHUFFLE
                    const vec4 p = subgroupShuffle(own[r / SUBGROUP], r % SUBGROUP);
#else
                    const vec4 p = probs[(r * TILE + j) / 4u];
#endif
                    [[unroll]] for (uint i = 0; i < 4u; i++)
                        [[unroll]] for (uint c = 0; c < DV; c++)
                            [[unroll]] for (uint e = 0; e < 4u; e++) {
                                const uint k = (i + e) % 4u;
                                acc[r * DV + c][e] = fma(p[k], v[k * DV + c][e], acc[r * DV + c][e]);
                            }
                }
#endif
            }
        }
        barrier();
    }

    [[unroll]] for (uint r = 0; r < TQ; r++) probs[r * LANE_WORDS + lane / 4u][lane & 3u] = sum[r];
    barrier();
    for (uint r = lane; r < TQ; r += LOCAL_SIZE) {
        vec4 total = vec4(0.0);
        // In one order, whichever row it is: where a prompt is cut must not change a bit.
        for (uint i = 0; i < LANE_WORDS; i++) total += probs[r * LANE_WORDS + i];
        row_stat[r].y = total.x + total.y + total.z + total.w;
    }
    barrier();
    [[unroll]] for (uint r = 0; r < TQ; r++) {
        if (first + r >= rows) break;
        const float total = row_stat[r].y;
        const uint o = gl_WorkGroupID.z * num_tokens * H * D4 + q0 + row_q[r];
        [[unroll]] for (uint c = 0; c < DV; c++)
            if (lane + c * LOCAL_SIZE < D4) y[o + lane + c * LOCAL_SIZE] = total == 0.0 ? vec4(0.0) : acc[r * DV + c] / (total * UNSCALE);  // NaN stays
        if (SPLITS > 1u && lane == 0u) part[o / D4] = row_stat[r];
    }
}
