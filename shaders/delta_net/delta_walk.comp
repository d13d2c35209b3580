// delta_walk: the gated delta rule over all tokens of the call, a chunk of CHUNK tokens at a time, from what delta_chunk made.
// For value head h, with k, q, v the chunk's rows and M the state at its start:
//   U = solve beta (v - grown k M^T);   o = grown q M^T + attend U;   M <- grown_last M + U^T (left k)
//
//   0  step    [..]          u32   in      word 0 = num_tokens
//   1  qkv     [T, C]        f32   in      as of delta_chunk
//   2  gates   [T, Hv]       vec2  in      (log_decay, beta)
//   3  chunks  [chunks, Hv, 2 CHUNK + 2, CHUNK]  f32  in   rows of solve, rows of attend, grown, left
//   4  state   [..]          f32   in out  at state_offset [Hv, Dv, Dk]: M, row = value index
//   5  o       [T, Hv, Dv]   f32   out
//
// Value indices never mix: they are the columns of the tiles (include/tile.glsl), and an invocation keeps its rows of M and
// its columns of U in shared memory that no other one reads, so there is no barrier.
//
// Grid: (Dv / (LOCAL_SIZE * TN), Hv, 1), which must divide. TT a multiple of 4 that divides CHUNK and Dk.
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
layout(binding = 1) readonly buffer QKV { float qkv[]; };
layout(binding = 1) readonly buffer QKV4 { vec4 qkv4[]; };
layout(binding = 2) readonly buffer Gates { vec2 gates[]; };
layout(binding = 3) readonly buffer Chunks { float chunks[]; };
layout(binding = 3) readonly buffer Chunks4 { vec4 chunks4[]; };
layout(binding = 4) buffer State { vec4 state[]; };
layout(binding = 5) writeonly buffer O { float o[]; };

layout(push_constant) uniform Push { uint state_offset; };  // a multiple of 4

#include "tile.glsl"

const uint C = 2u * Hk * Dk + Hv * Dv, COLUMNS = LOCAL_SIZE * TN;

shared vec4 m[Dk / 4u * COLUMNS];     // [Dk / 4][COLUMNS]
shared vec4 u[CHUNK / 4u * COLUMNS];  // [CHUNK / 4][COLUMNS], a word: 4 tokens

// acc = rows at word `head` of the tokens from t0 . M
void multiply_state(uint t0, uint last, uint head) {
    uint row[HELD];
    [[unroll]] for (uint n = 0; n < HELD; n++) row[n] = min(t0 + n * SHARE + shared_lane, last) * (C / 4u) + head;
    clear_tile();
    [[dont_unroll]] for (uint d = 0; d < Dk / 4u; d++) {
        vec4 held[HELD], x[TN];
        [[unroll]] for (uint n = 0; n < HELD; n++) held[n] = qkv4[row[n] + d];
        [[unroll]] for (uint c = 0; c < TN; c++) x[c] = m[d * COLUMNS + c * LOCAL_SIZE + lane];
        add_products(held, x);
    }
}

// acc += rows t0.. of the chunk's lower triangular matrix at `matrix` . U
void add_tokens(uint matrix, uint t0) {
    const uint row = (matrix + (t0 + shared_lane) * CHUNK) / 4u;
    [[dont_unroll]] for (uint s = 0; s < (t0 + TT) / 4u; s++) {
        vec4 held[HELD], x[TN];
        [[unroll]] for (uint n = 0; n < HELD; n++) held[n] = chunks4[row + n * SHARE * CHUNK / 4u + s];
        [[unroll]] for (uint c = 0; c < TN; c++) x[c] = u[s * COLUMNS + c * LOCAL_SIZE + lane];
        add_products(held, x);
    }
}

vec4 word_of_tile(uint i, uint c) {
    return vec4(acc[i * TN + c], acc[(i + 1u) * TN + c], acc[(i + 2u) * TN + c], acc[(i + 3u) * TN + c]);
}

void store_u(uint t0) {
    [[unroll]] for (uint i = 0; i < TT; i += 4u)
        [[unroll]] for (uint c = 0; c < TN; c++) u[(t0 + i) / 4u * COLUMNS + c * LOCAL_SIZE + lane] = word_of_tile(i, c);
}

// acc += U^T (left k) over a tile of tokens, which here is what the sum is over, for the TT places of k from word `at`
void add_update(uint first, uint last, uint at, uint t0, uint left) {
    vec4 x[TT / 4u * TN];
    [[unroll]] for (uint j = 0; j < TT / 4u; j++) {
        const vec4 weight = chunks4[(left + t0) / 4u + j];
        [[unroll]] for (uint c = 0; c < TN; c++) x[j * TN + c] = weight * u[(t0 / 4u + j) * COLUMNS + c * LOCAL_SIZE + lane];
    }
    [[unroll]] for (uint j = 0; j < TT / 4u; j++) {
        vec4 held[HELD];
        [[unroll]] for (uint n = 0; n < HELD; n++)
            held[n] = qkv4[min(first + n * SHARE + shared_lane, last) * (C / 4u) + at + j];
        [[unroll]] for (uint t = 0; t < TT; t++) {
            const vec4 k = row_of(held, t);
            [[unroll]] for (uint i = 0; i < 4u; i++)
                [[unroll]] for (uint c = 0; c < TN; c++) {
                    const uint to = (j * 4u + i) * TN + c;
                    acc[to] = fma(k[i], x[t / 4u * TN + c][t % 4u], acc[to]);
                }
        }
    }
}

void main() {
    start_tiles();
    const uint h = gl_WorkGroupID.y, v0 = gl_WorkGroupID.x * COLUMNS + lane, num_tokens = step_words[0];
    const uint q_head = h % Hk * Dk / 4u, k_head = q_head + Hk * Dk / 4u, v_head = 2u * Hk * Dk + h * Dv + v0;
    const uint state_row = (state_offset + (h * Dv + v0) * Dk) / 4u;

    [[unroll]] for (uint c = 0; c < TN; c++)
        [[dont_unroll]] for (uint d = 0; d < Dk / 4u; d++)
            m[d * COLUMNS + c * LOCAL_SIZE + lane] = state[state_row + c * LOCAL_SIZE * Dk / 4u + d];

    [[dont_unroll]] for (uint first = 0; first < num_tokens; first += CHUNK) {
        const uint count = min(num_tokens - first, CHUNK), last = num_tokens - 1u;
        const uint solve = (first / CHUNK * Hv + h) * (2u * CHUNK + 2u) * CHUNK, attend = solve + CHUNK * CHUNK;
        const uint grown = attend + CHUNK * CHUNK, left = grown + CHUNK;

        [[dont_unroll]] for (uint t0 = 0; t0 < count; t0 += TT) {
            multiply_state(first + t0, last, k_head);
            [[unroll]] for (uint i = 0; i < TT; i++) {
                const uint t = min(first + t0 + i, last);
                const float beta = t0 + i < count ? gates[t * Hv + h].y : 0.0, decay = chunks[grown + t0 + i];
                [[unroll]] for (uint c = 0; c < TN; c++)
                    acc[i * TN + c] = beta * (qkv[t * C + v_head + c * LOCAL_SIZE] - decay * acc[i * TN + c]);
            }
            store_u(t0);
        }
        // U in the place of what it is solved from: the last tile first, as no earlier one needs its rows.
        [[dont_unroll]] for (uint end = (count + TT - 1u) / TT * TT; end > 0u; end -= TT) {
            clear_tile();
            add_tokens(solve, end - TT);
            store_u(end - TT);
        }
        [[dont_unroll]] for (uint t0 = 0; t0 < count; t0 += TT) {
            multiply_state(first + t0, last, q_head);
            [[unroll]] for (uint i = 0; i < TT; i++) {
                const float decay = chunks[grown + t0 + i];
                [[unroll]] for (uint c = 0; c < TN; c++) acc[i * TN + c] *= decay;
            }
            add_tokens(attend, t0);
            [[unroll]] for (uint i = 0; i < TT; i++) {
                if (t0 + i >= count) break;
                [[unroll]] for (uint c = 0; c < TN; c++)
                    o[((first + t0 + i) * Hv + h) * Dv + v0 + c * LOCAL_SIZE] = acc[i * TN + c];
            }
        }
        // M, TT of its Dk at a time: acc[i * TN + c] = M[c, 4 d0 + i].
        const float decay = chunks[grown + CHUNK - 1u];
        [[dont_unroll]] for (uint d0 = 0; d0 < Dk / 4u; d0 += TT / 4u) {
            [[unroll]] for (uint i = 0; i < TT; i++)
                [[unroll]] for (uint c = 0; c < TN; c++)
                    acc[i * TN + c] = decay * m[(d0 + i / 4u) * COLUMNS + c * LOCAL_SIZE + lane][i % 4u];
            [[dont_unroll]] for (uint t0 = 0; t0 < count; t0 += TT) add_update(first + t0, last, k_head + d0, t0, left);
            [[unroll]] for (uint j = 0; j < TT; j += 4u)
                [[unroll]] for (uint c = 0; c < TN; c++) m[(d0 + j / 4u) * COLUMNS + c * LOCAL_SIZE + lane] = word_of_tile(j, c);
        }
    }

    [[unroll]] for (uint c = 0; c < TN; c++)
        [[dont_unroll]] for (uint d = 0; d < Dk / 4u; d++)
            state[state_row + c * LOCAL_SIZE * Dk / 4u + d] = m[d * COLUMNS + c * LOCAL_SIZE + lane];
}
