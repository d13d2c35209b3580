// matvec: y[first_row + n] = sum_k w[n, k] * x[k] for the rows n of one matrix part; ADD: added to what y holds.
//
//   0  x  [K]         f32  in
//   1  w  [..]        at w_offset [rows', K]: weights of one part (include/weights.glsl), rows' = rows rounded up to 32
//   2  y  [N]         f32  out
//
// A workgroup is ROW_LANES x SLICES: each invocation owns TN rows and every SLICES-th unit of them, the slices are summed through
// shared memory at the end. A GPU needs SLICES for enough loads in flight, a CPU device wants 1 (no barrier).
//
// Grid: (ceil(rows / (ROW_LANES * TN)), 1, 1). Needs K % 32 = 0. Sums in f32. Reference: tests/reference/linear.py.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint ROW_LANES = 32;
layout(constant_id = 1) const uint SLICES = 1;
layout(constant_id = 2) const uint TN = 8;
layout(constant_id = 3) const uint ADD = 0;
layout(local_size_x_id = 0, local_size_y_id = 1) in;

layout(binding = 0) readonly buffer X { vec4 x[]; };
layout(binding = 1) readonly buffer W4 { uvec4 w4[]; };
layout(binding = 1) readonly buffer W2 { uvec2 w2[]; };
layout(binding = 1) readonly buffer W1 { uint w1[]; };
layout(binding = 2) buffer Y { float y[]; };

layout(push_constant) uniform Push { uint w_offset, rows, K, first_row; };  // w_offset in uvec4

#include "weights.glsl"

shared float partial[ROW_LANES * SLICES * TN];

void main() {
    const uint lane_x = gl_LocalInvocationID.x, slice = gl_LocalInvocationID.y;
    const uint n0 = gl_WorkGroupID.x * (ROW_LANES * TN) + lane_x;
    const uint subs = K / 32u, units = (subs + UNIT_SUBS - 1u) / UNIT_SUBS;
    const uint last = ((rows + 31u) & ~31u) - 1u;

    uint at[TN], lane[TN];
    float acc[TN];
    [[unroll]] for (uint c = 0; c < TN; c++) {
        const uint n = min(n0 + c * ROW_LANES, last);
        at[c] = w_offset + row_start(n, units) + slice * UNIT_STRIDE;
        lane[c] = n & 31u;
        acc[c] = 0.0;
    }

    [[dont_unroll]] for (uint u = slice; u < units; u += SLICES) {
        Unit unit[TN];
        [[unroll]] for (uint c = 0; c < TN; c++) unit[c] = load_unit(at[c], lane[c]);
        const uint here = min(subs - u * UNIT_SUBS, UNIT_SUBS);
        uint xo = u * UNIT_SUBS * 8u;
        [[dont_unroll]] for (uint j = 0; j < here; j++) {
            Sub sub[TN];
            [[unroll]] for (uint c = 0; c < TN; c++) sub[c] = load_sub(unit[c], at[c], j);
            [[dont_unroll]] for (uint p = 0; p < 4u; p++) {
                const vec4 a = x[xo], b = x[xo + 1u];
                [[unroll]] for (uint c = 0; c < TN; c++) {
                    vec4 wa, wb;
                    next8(sub[c], wa, wb);
                    float s = acc[c];
                    s = fma(a.x, wa.x, s); s = fma(a.y, wa.y, s); s = fma(a.z, wa.z, s); s = fma(a.w, wa.w, s);
                    s = fma(b.x, wb.x, s); s = fma(b.y, wb.y, s); s = fma(b.z, wb.z, s); s = fma(b.w, wb.w, s);
                    acc[c] = s;
                }
                xo += 2u;
            }
        }
        [[unroll]] for (uint c = 0; c < TN; c++) at[c] += SLICES * UNIT_STRIDE;
    }

    if (SLICES > 1u) {
        [[unroll]] for (uint c = 0; c < TN; c++) partial[(slice * TN + c) * ROW_LANES + lane_x] = acc[c];
        barrier();
        if (slice > 0u) return;
        [[unroll]] for (uint c = 0; c < TN; c++)
            for (uint i = 1; i < SLICES; i++) acc[c] += partial[(i * TN + c) * ROW_LANES + lane_x];
    }
    [[unroll]] for (uint c = 0; c < TN; c++) {
        const uint n = n0 + c * ROW_LANES;
        if (n < rows) y[first_row + n] = ADD != 0u ? y[first_row + n] + acc[c] : acc[c];
    }
}
