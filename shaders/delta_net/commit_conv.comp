// commit_conv: the rows that wait become part of the convolution states of all delta-net layers: state = the three rows that end at the last of
// them.
//
//   0  step   [..]  u32   in      waiting
//   1  kept   [..]  vec4  in      of layer l at kept_offset + l kept_stride, see kept_rows.glsl
//   2  state  [..]  vec4  in out  of layer l at state_offset + l state_stride [3, C], oldest first
//
// Grid: (ceil(C / 4 / LOCAL_SIZE), 1, layers): an invocation has four channels of a layer. Reference: tests/reference/conv.py.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint Hv = 16;
layout(constant_id = 2) const uint C = 6144;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer Kept { vec4 kept[]; };
layout(binding = 2) buffer State { vec4 state[]; };

layout(push_constant) uniform Push { uint state_offset, state_stride, kept_offset, kept_stride; };  // multiples of 4

#include "committed.glsl"

void main() {
    const uint c = gl_GlobalInvocationID.x, layer = gl_WorkGroupID.z;
    if (c >= C / 4u) return;
    const uint state_at = state_offset + layer * state_stride, kept_at = kept_offset + layer * kept_stride;
    vec4 rows[3];
    [[unroll]] for (uint i = 0; i < 3u; i++) rows[i] = committed(i, c, state_at, kept_at);
    [[unroll]] for (uint i = 0; i < 3u; i++) state[(state_at + i * C) / 4u + c] = rows[i];
}
