// multiply_add: how fast the device multiplies and adds when nothing else is to be done; for `vkprefill bench`.
//
//   0  y  [invocations]  f32  out  so that the work is not left out
//
// Each invocation runs 8 independent chains of `count` steps a = a factor + addend. Grid: (workgroups, 1, 1).
#version 450

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(local_size_x_id = 0) in;

layout(binding = 0) writeonly buffer Y { float y[]; };

layout(push_constant) uniform Push {
    uint count;
    float factor, addend;
};

void main() {
    vec4 a = float(gl_LocalInvocationID.x) + vec4(0.0, 1.0, 2.0, 3.0);
    vec4 b = a + 4.0;
    for (uint i = 0; i < count; ++i) {
        a = a * factor + addend;
        b = b * factor + addend;
    }
    a += b;
    y[gl_GlobalInvocationID.x] = a.x + a.y + a.z + a.w;
}
