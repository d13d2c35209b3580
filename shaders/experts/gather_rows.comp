// gather_rows: rows[places[t, k], :] = x[t, :] for the K experts of each token, so that the rows of an expert lie together.
//
//   0  step    [..]     u32    in   num_tokens
//   1  places  [T, K]   u32    in   see group_rows.comp
//   2  x       [T, W]   uvec4  in   whatever a row's words are
//   3  rows    [S, W]   uvec4  out
//
// HALF: the words are halves, each row of which has a factor (include/half_row.glsl):
//
//   4  factors      [T]  f32  in
//   5  row_factors  [S]  f32  out
//
// Grid: (ceil(W / LOCAL_SIZE), T, 1).
#version 450
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint W = 512;
layout(constant_id = 2) const uint K = 8;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer Places { uint places[]; };
layout(binding = 2) readonly buffer Source { uvec4 x[]; };
layout(binding = 3) writeonly buffer Rows { uvec4 rows[]; };
#ifdef HALF
layout(binding = 4) readonly buffer Factors { float factors[]; };
layout(binding = 5) writeonly buffer RowFactors { float row_factors[]; };
#endif

void main() {
    const uint t = gl_WorkGroupID.y, i = gl_GlobalInvocationID.x;
    if (t >= step[NUM_TOKENS] || i >= W) return;
    const uvec4 word = x[t * W + i];
    for (uint k = 0; k < K; k++) {
        const uint place = places[t * K + k];
        rows[place * W + i] = word;
#ifdef HALF
        if (i == 0u) row_factors[place] = factors[t];
#endif
    }
}
