// top_k: the k best tokens from the best of each block: take the best, replace it by the next of its block, k times.
//
//   0  step        [..]      u32   in      penalty, num_candidates = k
//   1  logits      [V]       f32   in
//   2  seen        [V / 32]  u32   in
//   3  best        [V / 64]  uvec2 in out  from top_k_blocks
//   4  candidates  [k]       uvec2 out     (bits of the logit, token id), best first
//
// Grid: (1, 1, 1). Every block belongs to one invocation, which alone reads and writes its entry of `best`.
// Logits that are not finite come first. Where there are fewer than k tokens, the rest is minus infinity without an id.
#version 450
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint V = 248320;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer Logits { float logits[]; };
layout(binding = 2) readonly buffer Seen { uint seen[]; };
layout(binding = 3) buffer Best { uvec2 best[]; };
layout(binding = 4) writeonly buffer Candidates { uvec2 candidates[]; };

#include "candidates.glsl"

shared Candidate mine[LOCAL_SIZE];

// The best of the blocks that belong to this invocation.
Candidate best_of_mine() {
    Candidate found = NONE;
    for (uint b = gl_LocalInvocationID.x; b < (V + 63u) / 64u; b += LOCAL_SIZE) {
        const Candidate first = unpack(best[b]);
        if (before(first, found)) found = first;
    }
    return found;
}

void main() {
    const uint lane = gl_LocalInvocationID.x, k = step[NUM_CANDIDATES];
    Candidate own = best_of_mine();
    for (uint n = 0; n < k; n++) {
        mine[lane] = own;
        barrier();
        Candidate top = mine[0];
        for (uint i = 1; i < LOCAL_SIZE; i++) if (before(mine[i], top)) top = mine[i];
        barrier();
        if (lane == 0u) candidates[n] = pack(top);
        const uint b = top.id / 64u;
        if (top.id < V && b % LOCAL_SIZE == lane) {
            best[b] = pack(best_below(b, top));
            own = best_of_mine();
        }
    }
}
