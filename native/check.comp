// check: y[i] = x[i + N / 2 + 1, wrapped] + 1, each element from far away, so that a missing barrier shows.
//
//   0  x  [N]  u32  in
//   1  y  [N]  u32  out
//
// Grid: (N / 64, 1, 1). Run by barrier_check.py and companion_check.py.
#version 450

layout(local_size_x = 64) in;

layout(binding = 0) readonly buffer X { uint x[]; };
layout(binding = 1) writeonly buffer Y { uint y[]; };

void main() {
    const uint i = gl_GlobalInvocationID.x, n = x.length();
    y[i] = x[(i + n / 2 + 1) % n] + 1;
}
