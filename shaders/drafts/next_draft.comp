// next_draft: the best candidates of a draft row become drafts[row], the best of all the token of the next row, one slot further.
//
//   0  step        [..]                u32    in out  num_candidates; cache_len grows by one
//   1  candidates  [k..]               uvec2  in      (bits of the logit, index among the rows of the draft head), best first
//   2  ids         [M]                 u32    in      tokens of the rows of the draft head from FIRST_ROWS on
//   3  token_ids   [..]                u32    out     [0]: token of the next row
//   4  rope        [.., R / 2]         vec2   in out  row `row + 1` moves to row 0
//   5  drafts      [.., MOST]          uvec2  out     (bits of the logit, token id), best first, in row `row`
//
// Grid: (1, 1, 1). Of the draft head the first FIRST_ROWS rows are the first tokens of the vocabulary.
#version 450
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 0) const uint LOCAL_SIZE = 32;
layout(constant_id = 1) const uint PAIRS = 32;  // R / 2
layout(constant_id = 2) const uint MOST = 10;
layout(constant_id = 3) const uint FIRST_ROWS = 65536;
layout(local_size_x_id = 0) in;

#define STEP_ACCESS
#include "step.glsl"
layout(binding = 1) readonly buffer Candidates { uvec2 candidates[]; };
layout(binding = 2) readonly buffer Ids { uint ids[]; };
layout(binding = 3) writeonly buffer TokenIds { uint token_ids[]; };
layout(binding = 4) buffer Rope { vec2 rope[]; };
layout(binding = 5) writeonly buffer Drafts { uvec2 drafts[]; };

layout(push_constant) uniform Push { uint row; };

const uint NO_TOKEN = ~0u;  // fewer rows than candidates wanted

uint token(uint index) { return index == NO_TOKEN || index < FIRST_ROWS ? index : ids[index - FIRST_ROWS]; }

void main() {
    const uint lane = gl_LocalInvocationID.x;
    for (uint i = lane; i < min(step[NUM_CANDIDATES], MOST); i += LOCAL_SIZE) {
        const uvec2 found = candidates[i];
        drafts[row * MOST + i] = uvec2(found.x, token(found.y));
    }
    for (uint i = lane; i < PAIRS; i += LOCAL_SIZE) rope[i] = rope[(row + 1u) * PAIRS + i];
    if (lane == 0u) {
        token_ids[0] = token(candidates[0].y);
        step[CACHE_LEN] += 1u;
    }
}
