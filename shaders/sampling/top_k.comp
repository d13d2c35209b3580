// top_k: the k best tokens from the best of each block: take the best, replace it by the next of its block, k times.
//
//   0  step        [..]         u32   in      num_tokens, penalty, num_candidates = k
//   1  logits      [R, V]       f32   in
//   2  seen        [V / 32]     u32   in
//   3  token_ids   [R]          u32   in
//   4  allowed     [1 + R V/32] u32   in
//   5  best        [R, V / 64]  uvec2 in out  from top_k_blocks
//   6  candidates  [R, MOST]    uvec2 out     (bits of the logit, token id), the first k of a row, best first
//
// Grid: (1, R, 1); rows past num_tokens end at once. Every block of a row belongs to one invocation, which alone reads and writes its entry of `best`.
// Logits that are not finite come first. Where there are fewer than k tokens that may be candidates, the rest is minus infinity without an id.
#version 450
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint V = 248320;
layout(constant_id = 2) const uint MOST = 64;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer Logits { float logits[]; };
layout(binding = 2) readonly buffer Seen { uint seen[]; };
layout(binding = 3) readonly buffer TokenIds { uint token_ids[]; };
layout(binding = 4) readonly buffer Allowed { uint allowed[]; };
layout(binding = 5) buffer Best { uvec2 best[]; };
layout(binding = 6) writeonly buffer Candidates { uvec2 candidates[]; };

#include "candidates.glsl"

shared Candidate mine[LOCAL_SIZE];

// The best of the row's blocks that belong to this invocation.
Candidate best_of_mine(uint row) {
    Candidate found = NONE;
    for (uint b = gl_LocalInvocationID.x; b < BLOCKS; b += LOCAL_SIZE) {
        const Candidate first = unpack(best[row * BLOCKS + b]);
        if (before(first, found)) found = first;
    }
    return found;
}

void main() {
    const uint row = gl_WorkGroupID.y, lane = gl_LocalInvocationID.x, k = step[NUM_CANDIDATES];
    if (row >= step[NUM_TOKENS]) return;
    Candidate own = best_of_mine(row);
    for (uint n = 0; n < k; n++) {
        mine[lane] = own;
        barrier();
        Candidate top = mine[0];
        for (uint i = 1; i < LOCAL_SIZE; i++) if (before(mine[i], top)) top = mine[i];
        barrier();
        if (lane == 0u) candidates[row * MOST + n] = pack(top);
        const uint b = top.id / 64u;
        if (top.id < V && b % LOCAL_SIZE == lane) {
            best[row * BLOCKS + b] = pack(best_below(row, b, top));
            own = best_of_mine(row);
        }
    }
}
