// top_k_blocks: the best logit of each block of 64, lowest id first among equals; one that is not finite before all others.
//
//   0  step     [..]      u32   in   penalty
//   1  logits   [V]       f32   in
//   2  seen     [V / 32]  u32   in   bit i: token i was generated before, its logit is lowered by the penalty
//   3  best     [V / 64]  uvec2 out  (bits of the logit, token id)
//
// Grid: (ceil(V / 64 / LOCAL_SIZE), 1, 1). Reference: numpy.argsort in tests/shaders/test_top_k.py.
#version 450
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint V = 248320;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer Logits { float logits[]; };
layout(binding = 2) readonly buffer Seen { uint seen[]; };
layout(binding = 3) writeonly buffer Best { uvec2 best[]; };

#include "candidates.glsl"

void main() {
    const uint b = gl_GlobalInvocationID.x;
    if (b < (V + 63u) / 64u) best[b] = pack(best_below(b, START));
}
