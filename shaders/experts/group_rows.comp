// group_rows: where each token's rows lie when those of an expert lie together, and the tiles that products of them are made in.
//
//   0  step    [..]     u32    in   num_tokens
//   1  ids     [T, K]   u32    in   experts, below X
//   2  places  [T, K]   u32    out  of a token's k-th row among all, which are sorted by expert, then by token
//   3  tiles   [TILES]  uvec4  out  (expert, first place, rows, 0), at most B rows of one expert each; those not needed have none
//
// An invocation counts the rows of its experts among all ids, adds up those of experts before them and hands out the places. TILES is at least
// T K / B + min(X, T K).
//
// Grid: (1, 1, 1). Reference: tests/reference/experts.py.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint LOCAL_SIZE = 128;
layout(constant_id = 1) const uint X = 256;
layout(constant_id = 2) const uint K = 8;
layout(constant_id = 3) const uint B = 32;
layout(constant_id = 4) const uint TILES = 768;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer Ids { uint ids[]; };
layout(binding = 2) writeonly buffer Places { uint places[]; };
layout(binding = 3) writeonly buffer Tiles { uvec4 tiles[]; };

const uint OWN = (X + LOCAL_SIZE - 1u) / LOCAL_SIZE;  // experts of one invocation: i, i + LOCAL_SIZE, ...

shared uint rows[OWN * LOCAL_SIZE];  // of each expert

const uint BATCH = 8u;  // ids that are on their way at a time
const uint NONE = 0xFFFFFFFFu;

uint experts[BATCH];  // of rows i, i + 1, ...

void load_experts(uint i, uint num_rows) {
    if (i + BATCH <= num_rows) {
        [[unroll]] for (uint b = 0; b < BATCH; b++) experts[b] = ids[i + b];
    } else {
        [[unroll]] for (uint b = 0; b < BATCH; b++) experts[b] = i + b < num_rows ? ids[i + b] : NONE;
    }
}

uint tiles_of(uint count) { return (count + B - 1u) / B; }

void main() {
    const uint lane = gl_LocalInvocationID.x, num_rows = step[NUM_TOKENS] * K;
    uint own[OWN];
    [[unroll]] for (uint o = 0; o < OWN; o++) own[o] = 0u;
    [[dont_unroll]] for (uint i = 0; i < num_rows; i += BATCH) {
        load_experts(i, num_rows);
        [[unroll]] for (uint b = 0; b < BATCH; b++)
            [[unroll]] for (uint o = 0; o < OWN; o++) own[o] += uint(experts[b] == o * LOCAL_SIZE + lane);
    }
    [[unroll]] for (uint o = 0; o < OWN; o++) rows[o * LOCAL_SIZE + lane] = own[o];
    barrier();

    uint all_tiles = 0u, next[OWN];
    [[unroll]] for (uint o = 0; o < OWN; o++) {
        const uint expert = o * LOCAL_SIZE + lane;
        uint tile = 0u;
        next[o] = 0u;
        for (uint e = 0; e < expert; e++) {
            next[o] += rows[e];
            tile += tiles_of(rows[e]);
        }
        for (uint r = 0; r < own[o]; r += B) tiles[tile + r / B] = uvec4(expert, next[o] + r, min(B, own[o] - r), 0u);
    }
    for (uint e = 0; e < X; e++) all_tiles += tiles_of(rows[e]);
    for (uint i = all_tiles + lane; i < TILES; i += LOCAL_SIZE) tiles[i] = uvec4(0u);

    [[dont_unroll]] for (uint i = 0; i < num_rows; i += BATCH) {
        load_experts(i, num_rows);
        [[unroll]] for (uint b = 0; b < BATCH; b++)
            [[unroll]] for (uint o = 0; o < OWN; o++)
                if (experts[b] == o * LOCAL_SIZE + lane) places[i + b] = next[o]++;
    }
}
