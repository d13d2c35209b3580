// matvec: y[first_row + n] = sum_k w[n, k] * x[k] for the rows n of one matrix part; ADD: added to what y holds.
//
//   0  x  [K]   f32 in
//   1  w  [..]  in      weights of one part [rows, K] (include/weights.glsl)
//   2  y  [N]   f32 out
//
// A workgroup is ROW_LANES x SLICES: each invocation owns TN rows and every SLICES-th unit of them, the slices are summed through
// shared memory at the end. A GPU needs SLICES for enough loads in flight, a CPU device wants 1 (no barrier).
//
// SHUFFLE: for devices that pay for every lane of a load (see matmul.comp). The 8 words of 4 activations of a sub-block are loaded by 8
// lanes (in turns, where the subgroup has fewer) and handed to all by shuffles. SUBGROUP is the device's subgroup size, a power of two
// of which ROW_LANES is a multiple; SLICES is 1. WIDE, with SHUFFLE: see words.glsl.
//
// Grid: (ceil(rows / (ROW_LANES * TN)), 1, 1). Needs K % 32 = 0. Sums in f32. Reference: tests/reference/linear.py.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#ifdef SHUFFLE
#extension GL_KHR_shader_subgroup_shuffle : require
#endif
#ifdef WIDE
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#endif

layout(constant_id = 0) const uint ROW_LANES = 32;
layout(constant_id = 1) const uint SLICES = 1;
layout(constant_id = 2) const uint TN = 8;
layout(constant_id = 3) const uint ADD = 0;
#ifdef SHUFFLE
layout(constant_id = 4) const uint SUBGROUP = 8;
#endif
layout(local_size_x_id = 0, local_size_y_id = 1) in;

#include "weights.glsl"
layout(binding = 0) readonly buffer X { FLOATS4 x[]; };
layout(binding = 2) buffer Y { float y[]; };

#ifdef SHUFFLE
const uint LANES = SUBGROUP < 8u ? SUBGROUP : 8u, LOADS = 8u / LANES;
#endif

shared float partial[ROW_LANES * SLICES * TN];

void main() {
    const uint lane_x = gl_LocalInvocationID.x, slice = gl_LocalInvocationID.y;
    const uint n0 = gl_WorkGroupID.x * (ROW_LANES * TN) + lane_x;
    const uint subs = K / 32u, units = units_of_row();

    uint at[TN], lane[TN];
    float acc[TN];
    [[unroll]] for (uint c = 0; c < TN; c++) {
        const uint n = stored_row(n0 + c * ROW_LANES);
        at[c] = row_start(n) + slice * UNIT_STRIDE;
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
#ifdef SHUFFLE
            vec4 words[LOADS];
            [[unroll]] for (uint i = 0; i < LOADS; i++) words[i] = loaded_floats(x[xo + i * LANES + gl_SubgroupInvocationID % LANES]);
            xo += 8u;
            [[unroll]] for (uint p = 0; p < 4u; p++) {
                const vec4 a = subgroupShuffle(words[2u * p / LANES], 2u * p % LANES);
                const vec4 b = subgroupShuffle(words[(2u * p + 1u) / LANES], (2u * p + 1u) % LANES);
#else
            [[dont_unroll]] for (uint p = 0; p < 4u; p++) {
                const vec4 a = x[xo], b = x[xo + 1u];
                xo += 2u;
#endif
                [[unroll]] for (uint c = 0; c < TN; c++) {
                    vec4 wa, wb;
                    next8(sub[c], wa, wb);
                    float s = acc[c];
                    s = fma(a.x, wa.x, s); s = fma(a.y, wa.y, s); s = fma(a.z, wa.z, s); s = fma(a.w, wa.w, s);
                    s = fma(b.x, wb.x, s); s = fma(b.y, wb.y, s); s = fma(b.z, wb.z, s); s = fma(b.w, wb.w, s);
                    acc[c] = s;
                }
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
