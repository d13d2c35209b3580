// top_k_blocks: the best logit of each block of 64, lowest id first among equals; one that is not finite before all others.
//
//   0  step       [..]         u32   in   num_tokens, penalty
//   1  logits     [R, V]       f32   in
//   2  seen       [V / 32]     u32   in   bit i: token i was generated before, its logit is lowered by the penalty
//   3  token_ids  [R]          u32   in   of the run: row r's logits follow tokens 1 to r of it, which lowers theirs too
//   4  allowed    [1 + R V/32] u32   in   word 0: whether only some tokens may be candidates; then for each row bit i: token i may
//   5  best       [R, V / 64]  uvec2 out  (bits of the logit, token id)
//
// Grid: (ceil(V / 64 / LOCAL_SIZE), R, 1); rows past num_tokens end at once. Reference: numpy.lexsort in
// tests/shaders/test_top_k.py.
#version 450
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint V = 248320;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer Logits { float logits[]; };
layout(binding = 2) readonly buffer Seen { uint seen[]; };
layout(binding = 3) readonly buffer TokenIds { uint token_ids[]; };
layout(binding = 4) readonly buffer Allowed { uint allowed[]; };
layout(binding = 5) writeonly buffer Best { uvec2 best[]; };

#include "candidates.glsl"

void main() {
    const uint row = gl_WorkGroupID.y, b = gl_GlobalInvocationID.x;
    if (row < step[NUM_TOKENS] && b < BLOCKS) best[row * BLOCKS + b] = pack(best_below(row, b, START));
}
