// delta_chunk: the parts of the gated delta rule's chunk form that do not depend on the state, for one chunk of CHUNK tokens and
// one value head h (key head h mod Hk). With decay[t, s] = exp(sum of log_decay over s < j <= t) for s <= t, and 0 above:
//   A[t, s] = beta_t decay[t, s] k_t.k_s for s < t;   solve = (I + A)^-1;   attend[t, s] = decay[t, s] q_t.k_s
//   grown[t] = exp(sum of log_decay up to t);   left[t] = exp(sum of log_decay after t)
// Sums of terms <= 0 only: nothing overflows, nothing cancels, however strong the decay.
//
//   0  step    [..]        u32   in      word 0 = num_tokens
//   1  qkv     [T, C]      f32   in      normalised q and k (q scaled), then v; a row: Hk q heads, Hk k heads, Hv v heads
//   2  gates   [T, Hv]     vec2  in      (log_decay, beta)
//   3  chunks  [chunks, Hv, 2 CHUNK + 2, CHUNK]  f32  out  rows of solve, rows of attend, grown, left
//
// Tokens of the last chunk past num_tokens count as the last one with log_decay = beta = 0: they change nothing. Rows are
// written up to a whole tile of TT tokens, columns up to the last of the row's tile at least; the rest stays as it was.
// Rows of tiles (include/tile.glsl) are tokens t, columns are tokens s.
//
// Grid: (chunks, Hv, 1). Dk and TT multiples of 4; TT divides LOCAL_SIZE TN, that divides CHUNK.
// Source: the WY form of Gated Delta Networks, Yang et al. 2024 (arXiv 2412.06464). Reference: tests/reference/delta_rule.py,
// chunked.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint LOCAL_SIZE = 8;
layout(constant_id = 1) const uint TT = 8;
layout(constant_id = 2) const uint TN = 4;
layout(constant_id = 3) const uint SHARE = 1;
layout(constant_id = 4) const uint CHUNK = 64;
layout(constant_id = 5) const uint Hk = 16;
layout(constant_id = 6) const uint Hv = 16;
layout(constant_id = 7) const uint Dk = 128;
layout(constant_id = 8) const uint Dv = 128;
layout(local_size_x_id = 0) in;

layout(binding = 0) readonly buffer Step { uint step_words[]; };
layout(binding = 1) readonly buffer QKV4 { vec4 qkv4[]; };
layout(binding = 2) readonly buffer Gates { vec2 gates[]; };
layout(binding = 3) buffer Chunks { float chunks[]; };

#include "tile.glsl"

const uint C4 = (2u * Hk * Dk + Hv * Dv) / 4u;  // words of a row

shared float a[CHUNK * CHUNK];  // A by rows
shared vec2 gate[CHUNK];

// acc = rows at word `head` of the tokens from t0 . k of the columns' tokens
void multiply_keys(uint t0, uint s0, uint last, uint head, uint k_head) {
    uint row[HELD], column[TN];
    [[unroll]] for (uint n = 0; n < HELD; n++) row[n] = min(t0 + n * SHARE + shared_lane, last) * C4 + head;
    [[unroll]] for (uint c = 0; c < TN; c++) column[c] = min(s0 + c * LOCAL_SIZE + lane, last) * C4 + k_head;
    clear_tile();
    [[dont_unroll]] for (uint d = 0; d < Dk / 4u; d++) {
        vec4 held[HELD], k[TN];
        [[unroll]] for (uint n = 0; n < HELD; n++) held[n] = qkv4[row[n] + d];
        [[unroll]] for (uint c = 0; c < TN; c++) k[c] = qkv4[column[c] + d];
        add_products(held, k);
    }
}

void main() {
    start_tiles();
    const uint h = gl_WorkGroupID.y, first = gl_WorkGroupID.x * CHUNK, num_tokens = step_words[0];
    if (first >= num_tokens) return;
    const uint count = min(num_tokens - first, CHUNK), last = num_tokens - 1u;
    const uint solve = (gl_WorkGroupID.x * Hv + h) * (2u * CHUNK + 2u) * CHUNK, attend = solve + CHUNK * CHUNK;
    const uint grown = attend + CHUNK * CHUNK, left = grown + CHUNK;
    const uint q_head = h % Hk * Dk / 4u, k_head = q_head + Hk * Dk / 4u;

    for (uint t = lane; t < CHUNK; t += LOCAL_SIZE) gate[t] = t < count ? gates[(first + t) * Hv + h] : vec2(0.0);
    barrier();
    if (lane == 0u) {
        float sum = 0.0;
        for (uint t = 0; t < CHUNK; t++) chunks[grown + t] = exp(sum += gate[t].x);
        sum = 0.0;
        for (uint t = CHUNK; t-- > 0u; sum += gate[t].x) chunks[left + t] = exp(sum);
    }

    // A and attend, below the diagonal and in the tiles that it passes through.
    [[dont_unroll]] for (uint s0 = 0; s0 < count; s0 += LOCAL_SIZE * TN) {
        float sum[TN];
        [[unroll]] for (uint c = 0; c < TN; c++) sum[c] = 0.0;
        [[dont_unroll]] for (uint t0 = s0; t0 < count; t0 += TT) {
            float decay[TT * TN];
            [[unroll]] for (uint i = 0; i < TT; i++) {
                const float log_decay = gate[t0 + i].x;
                [[unroll]] for (uint c = 0; c < TN; c++) {
                    const uint t = t0 + i, s = s0 + c * LOCAL_SIZE + lane;
                    sum[c] += s < t ? log_decay : 0.0;
                    decay[i * TN + c] = s <= t ? exp(sum[c]) : 0.0;
                }
            }
            multiply_keys(first + t0, first + s0, last, k_head, k_head);
            [[unroll]] for (uint i = 0; i < TT; i++) {
                const float beta = gate[t0 + i].y;
                [[unroll]] for (uint c = 0; c < TN; c++) {
                    const uint t = t0 + i, s = s0 + c * LOCAL_SIZE + lane;
                    a[t * CHUNK + s] = s < t ? beta * decay[i * TN + c] * acc[i * TN + c] : 0.0;
                }
            }
            multiply_keys(first + t0, first + s0, last, q_head, k_head);
            [[unroll]] for (uint i = 0; i < TT; i++)
                [[unroll]] for (uint c = 0; c < TN; c++)
                    chunks[attend + (t0 + i) * CHUNK + s0 + c * LOCAL_SIZE + lane] = decay[i * TN + c] * acc[i * TN + c];
        }
    }
    barrier();

    // Rows of the inverse in turn: solve[t] = e_t - sum over s < t of A[t, s] solve[s]. Columns never mix.
    [[dont_unroll]] for (uint s0 = 0; s0 < count; s0 += LOCAL_SIZE * TN) {
        const uint column = solve + s0 + lane;
        [[dont_unroll]] for (uint t0 = s0; t0 < count; t0 += TT) {
            clear_tile();
            [[dont_unroll]] for (uint s = s0; s < t0; s += 4u) {
                vec4 held[HELD], known[TN];
                [[unroll]] for (uint n = 0; n < HELD; n++) {
                    const uint at = (t0 + n * SHARE + shared_lane) * CHUNK + s;
                    held[n] = vec4(a[at], a[at + 1u], a[at + 2u], a[at + 3u]);
                }
                [[unroll]] for (uint c = 0; c < TN; c++)
                    [[unroll]] for (uint j = 0; j < 4u; j++) known[c][j] = chunks[column + (s + j) * CHUNK + c * LOCAL_SIZE];
                add_products(held, known);
            }
            [[unroll]] for (uint i = 0; i < TT; i++) {
                [[unroll]] for (uint c = 0; c < TN; c++)
                    acc[i * TN + c] = (s0 + c * LOCAL_SIZE + lane == t0 + i ? 1.0 : 0.0) - acc[i * TN + c];
                [[unroll]] for (uint j = 0; j < i; j++) {
                    const float factor = a[(t0 + i) * CHUNK + t0 + j];
                    [[unroll]] for (uint c = 0; c < TN; c++) acc[i * TN + c] -= factor * acc[j * TN + c];
                }
                [[unroll]] for (uint c = 0; c < TN; c++)
                    chunks[column + (t0 + i) * CHUNK + c * LOCAL_SIZE] = acc[i * TN + c];
            }
        }
    }
}
