// multiply_add: how fast the device multiplies and adds when nothing else is to be done; for `vkprefill bench`.
//
//   0  y  [invocations]  f32  out  so that the work is not left out
//
// Each invocation runs 16 independent chains of 8 count steps a = a factor + addend. Grid: (workgroups, 1, 1).
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
    vec4 b = a + 4.0, c = a + 8.0, d = a + 12.0;
    for (uint i = 0; i < count; ++i) {
        for (uint step = 0; step < 8; ++step) {  // unrolled by every compiler: what a loop costs by itself is spread over 128 multiply-adds
            a = a * factor + addend;
            b = b * factor + addend;
            c = c * factor + addend;
            d = d * factor + addend;
        }
    }
    y[gl_GlobalInvocationID.x] = dot(a + b + c + d, vec4(1.0));
}
