// copy_wide: to[i] = from[i], i < count, in words of 128 bits: how fast memory is read and written when nothing else is to be done; for
// `vkprefill bench`. The product copies with copy.comp, which takes any offset.
//
//   0  from  [..]  uvec4  in
//   1  to    [..]  uvec4  out
//
// Grid: (workgroups, 1, 1); invocations stride over what is left.
#version 450

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(local_size_x_id = 0) in;

layout(binding = 0) readonly buffer From { uvec4 from[]; };
layout(binding = 1) writeonly buffer To { uvec4 to[]; };

layout(push_constant) uniform Push { uint count; };

void main() {
    for (uint i = gl_GlobalInvocationID.x; i < count; i += gl_NumWorkGroups.x * LOCAL_SIZE) to[i] = from[i];
}
