// last_accepted: the row of a few-rows run that the next token of the multi-token-prediction block is paired with.
//   waited = the last of the kept rows that wait, if any do; then the rows of this run take their places
//
//   0  step    [..]    u32   in      num_tokens, waiting
//   1  x       [R, D]  vec4  in      rows of this run; not read without KEEP
//   2  kept    [..]    vec4  in out  at kept_offset [8, D]
//   3  waited  [..]    vec4  out     at waited_offset [D]
//
// KEEP 0: kept stays as it is. Grid: (ceil(D / 4 / LOCAL_SIZE), 1, 1). Needs D % 4 = 0.
#version 450
#extension GL_GOOGLE_include_directive : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint D = 1024;
layout(constant_id = 2) const uint KEEP = 1;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer X { vec4 x[]; };
layout(binding = 2) buffer Kept { vec4 kept[]; };
layout(binding = 3) writeonly buffer Waited { vec4 waited[]; };

layout(push_constant) uniform Push { uint kept_offset, waited_offset; };  // multiples of 4

void main() {
    const uint i = gl_GlobalInvocationID.x, waiting = step[WAITING];
    if (i >= D / 4u) return;
    const uint at = kept_offset / 4u + i;
    if (waiting > 0u) waited[waited_offset / 4u + i] = kept[at + (waiting - 1u) * (D / 4u)];
    if (KEEP == 0u) return;
    for (uint t = 0; t < step[NUM_TOKENS]; t++) kept[at + t * (D / 4u)] = x[t * (D / 4u) + i];
}
