// fill: to[i] = value for every i < count, in words of 32 bits.
//
//   0  to  [..]  u32  out
//
// Grid: (workgroups, 1, 1), at most 65,535; invocations stride over what is left.
#version 450

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(local_size_x_id = 0) in;

layout(binding = 0) writeonly buffer To { uint to[]; };

layout(push_constant) uniform Push { uint value, count; };

void main() {
    for (uint i = gl_GlobalInvocationID.x; i < count; i += gl_NumWorkGroups.x * LOCAL_SIZE) to[i] = value;
}
