// attention_rows: scores -> softmax rows, in place; zero for the keys after the query.
//
//   0  step    [..]            u32   in      cache_len, num_queries, num_keys = S of a row to write
//   1  chosen  [Q, 2]          uvec2 in      (token of this call, its row of `rows`)
//   2  part    [SPLITS, Q, H]  vec2  in      from attention_scores
//   3  rows    [.., H, stride] f32   in out
//
// `rows` may be host-visible: this is where captured attention reaches the CPU. Grid: (WORKGROUPS, H, Q); invocations stride over the keys.
#version 450
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint H = 8;
layout(constant_id = 2) const uint SPLITS = 8;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer Chosen { uvec2 chosen[]; };
layout(binding = 2) readonly buffer Part { vec2 part[]; };
layout(binding = 3) buffer Rows { float rows[]; };

layout(push_constant) uniform Push { uint stride; };  // of a row

void main() {
    const uint h = gl_WorkGroupID.y, j = gl_WorkGroupID.z, num_queries = step[NUM_QUERIES];
    if (j >= num_queries) return;
    const uint visible = step[CACHE_LEN] + chosen[j].x + 1u, row = (chosen[j].y * H + h) * stride;
    float top = part[j * H + h].x;
    for (uint i = 1; i < SPLITS; i++) top = max(top, part[(i * num_queries + j) * H + h].x);
    float total = 0.0;
    for (uint i = 0; i < SPLITS; i++) {
        const vec2 p = part[(i * num_queries + j) * H + h];
        total += p.y * exp(p.x - top);
    }
    for (uint s = gl_GlobalInvocationID.x; s < step[NUM_KEYS]; s += gl_NumWorkGroups.x * LOCAL_SIZE)
        rows[row + s] = s < visible ? exp(rows[row + s] - top) / total : 0.0;
}
