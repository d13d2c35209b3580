// importance_sum: total[t] += sum over the queries of this call of best[j, t]; the host divides by the number of queries.
//
//   0  step   [..]         u32  in      num_queries, prompt_keys = T
//   1  best   [Q, stride]  f32  in
//   2  total  [T]          f32  in out
//
// Grid: (ceil(keys / LOCAL_SIZE), 1, 1).
#version 450
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer Best { float best[]; };
layout(binding = 2) buffer Total { float total[]; };

layout(push_constant) uniform Push { uint stride; };  // of a row of best

void main() {
    const uint t = gl_GlobalInvocationID.x;
    if (t >= step[PROMPT_KEYS]) return;
    float sum = total[t];
    for (uint j = 0; j < step[NUM_QUERIES]; j++) sum += best[j * stride + t];
    total[t] = sum;
}
