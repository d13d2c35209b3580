// matvec: y[t, first_row + n] = sum_k w[n, k] * x[t, k] for a few tokens t and the rows n of one matrix part; add: added to what y holds.
//
//   0  step  num_tokens, the rows of x in use this call; with TM = 1 it is not read, and the first row is
//   1  w     [..]    in      weights of one part [rows, K] (include/weights.glsl)
//   2  x     [T, K]  f32 in
//   3  y     [T, N]  f32 out
//
// Each weight is loaded and dequantised once for TM rows of x, of which T <= TM are in use; in place of the others the last one is
// multiplied again and dropped. A row's sum has one order, whatever TM and T are: the bits of y are those of one row alone.
//
// A workgroup is ROW_LANES x SLICES: an invocation owns TN rows of w and every SLICES-th batch of their sub-blocks; the slices are summed
// through shared memory at the end. A GPU needs the weights of a whole batch on their way at a time, and slices, for enough loads in
// flight. The slices count through all their numbers and work in their own: so the address of an activation depends on nothing but loop
// counters, and a wave reads it once into scalar registers.
//
// SHUFFLE: for devices that pay for every lane of a load, and gain nothing from several in flight (see matmul.comp). The 8 words of 4
// activations of a sub-block are loaded by 8 lanes (in turns, where the subgroup has fewer) and handed to all by shuffles. SUBGROUP is
// the device's subgroup size, a power of two of which ROW_LANES is a multiple; SLICES is 1. WIDE, with SHUFFLE: see words.glsl.
//
// EXPERTS: with TM = 1. A token has a row of y for each of its experts, and, with own_rows, of x too; without, one for all of them.
//
//   4  ids  [T, S]  u32  in  experts; those in other slabs are none of this dispatch
//
// Grid: (ceil(rows / (ROW_LANES * TN)), 1, 1), EXPERTS: (.., T, S). Sums in f32. Reference: tests/reference/linear.py.
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
layout(constant_id = 2) const uint TM = 1;
layout(constant_id = 3) const uint TN = 8;
#ifdef SHUFFLE
layout(constant_id = 4) const uint SUBGROUP = 8;
#endif
layout(local_size_x_id = 0, local_size_y_id = 1) in;

#include "step.glsl"
#include "weights.glsl"
layout(binding = 2) readonly buffer X { FLOATS4 x[]; };
layout(binding = 3) buffer Y { float y[]; };
#ifdef EXPERTS
layout(binding = 4) readonly buffer Ids { uint ids[]; };
#endif

const uint BATCH = 8u;  // sub-blocks that a slice takes at a time: a multiple of UNIT_SUBS, whatever the format
#ifdef SHUFFLE
const uint PART = 1u;  // sub-blocks whose weights are loaded together
const uint LANES = SUBGROUP < 8u ? SUBGROUP : 8u, LOADS = 8u / LANES;
#else
const uint PART = TM < 4u ? BATCH : 16u / TM;  // with more rows there is more to do with each
#endif
const uint TURNS = TM < 2u ? 1u : 2u;

shared float partial[ROW_LANES * SLICES * TM * TN];

Sub sub[PART * TN];
uint xo[TM];  // where x goes on, in each row
float acc[TM * TN];

#ifdef SHUFFLE
vec4 words[TM * LOADS];  // of x for a sub-block, those that this lane loads
#endif

// The i-th word of x for a sub-block, in row r.
vec4 x_word(uint r, uint i) {
#ifdef SHUFFLE
    return subgroupShuffle(words[r * LOADS + i / LANES], i % LANES);
#else
    return x[xo[r] + i];
#endif
}

// Adds the products of x with the sub-blocks of a batch, the j-th of each row of w, of count times 8 columns, 2 or 4. 16 weights are dequantised, then multiplied by two
// rows of x in turns: AMD GPUs issue two multiply-adds at once if neither waits for the other.
void multiply(uint j, uint count) {
#ifdef SHUFFLE
    [[unroll]] for (uint r = 0; r < TM; r++)
        [[unroll]] for (uint i = 0; i < LOADS; i++) {
            const uint word = i * LANES + gl_SubgroupInvocationID % LANES;
            words[r * LOADS + i] = loaded_floats(x[xo[r] + (count < 4u ? min(word, 2u * count - 1u) : word)]);
        }
#endif
    [[unroll]] for (uint i = 0; i < 8u; i += 4u) {
        if (i >= 2u * count) continue;
        vec4 weights[4 * TN];
        [[unroll]] for (uint q = 0; q < 4u; q += 2u)
            [[unroll]] for (uint c = 0; c < TN; c++)
                next8(sub[j * TN + c], weights[q * TN + c], weights[(q + 1u) * TN + c]);
        [[unroll]] for (uint r = 0; r < TM; r += TURNS)
            [[unroll]] for (uint q = 0; q < 4u; q++) {
                vec4 a[TURNS];
                [[unroll]] for (uint t = 0; t < TURNS; t++) a[t] = x_word(r + t, i + q);
                [[unroll]] for (uint k = 0; k < 4u; k++)
                    [[unroll]] for (uint t = 0; t < TURNS; t++)
                        [[unroll]] for (uint c = 0; c < TN; c++) {
                            const uint o = (r + t) * TN + c;
                            acc[o] = fma(a[t][k], weights[q * TN + c][k], acc[o]);
                        }
            }
    }
    [[unroll]] for (uint r = 0; r < TM; r++) xo[r] += 8u;
}

// The first row of x, and of y.
#ifdef EXPERTS
uint slot() { return gl_WorkGroupID.y * gl_NumWorkGroups.z + gl_WorkGroupID.z; }
uint first_x() { return own_rows != 0u ? slot() : gl_WorkGroupID.y; }
uint first_y() { return slot(); }
#else
uint first_x() { return 0u; }
uint first_y() { return 0u; }
#endif

void start_at(uint column, uint num_tokens) {
    [[unroll]] for (uint r = 0; r < TM; r++) xo[r] = ((first_x() + min(r, num_tokens - 1u)) * K + column) / 4u;
}

void main() {
    const uint lane_x = gl_LocalInvocationID.x, slice = gl_LocalInvocationID.y;
    const uint n0 = gl_WorkGroupID.x * (ROW_LANES * TN) + lane_x;
    const uint num_tokens = TM > 1u ? step[NUM_TOKENS] : 1u;
    if (num_tokens == 0u) return;
#ifdef EXPERTS
    if (gl_WorkGroupID.y >= step[NUM_TOKENS]) return;
    expert = ids[slot()] - first_expert;  // wraps for one before the slab
    if (expert >= experts) return;
#endif
    prepare_weights();
    const uint subs = subs_of_row();

    uint start[TN], lane[TN];
    [[unroll]] for (uint c = 0; c < TN; c++) {
        const uint n = stored_row(n0 + c * ROW_LANES);
        start[c] = row_start(n);
        lane[c] = n & 31u;
    }
    [[unroll]] for (uint i = 0; i < TM * TN; i++) acc[i] = 0.0;

    [[dont_unroll]] for (uint s = 0; s < SLICES; s++) {
        if (s != slice) continue;
        uint b = 0u;  // sub-blocks of w before those that come next
#ifndef SHUFFLE
        [[dont_unroll]] for (b = s * BATCH; b + BATCH <= K / 32u; b += SLICES * BATCH) {
            start_at(b * 32u, num_tokens);
            [[dont_unroll]] for (uint first = b; first < b + BATCH; first += PART) {
                const uint unit_first = first / UNIT_SUBS, sub_first = PART < UNIT_SUBS ? first % UNIT_SUBS : 0u;
                [[unroll]] for (uint i = 0; i < PART; i++)
                    [[unroll]] for (uint c = 0; c < TN; c++) {
                        const uint at = start[c] + (unit_first + i / UNIT_SUBS) * UNIT_STRIDE;
                        sub[i * TN + c] = load_sub(load_unit(at, lane[c]), at, sub_first + i % UNIT_SUBS);
                    }
                [[unroll]] for (uint i = 0; i < PART; i++) multiply(i, 4u);
            }
        }
        if (UNIT_SUBS == BATCH) continue;
#endif
        // What is less than a batch; with SHUFFLE everything.
        start_at(b * 32u, num_tokens);
        [[dont_unroll]] for (; b < subs; b += UNIT_SUBS) {
            Unit unit[TN];
            uint at[TN];
            [[unroll]] for (uint c = 0; c < TN; c++) {
                at[c] = start[c] + b / UNIT_SUBS * UNIT_STRIDE;
                unit[c] = load_unit(at[c], lane[c]);
            }
            const uint here = min(subs - b, UNIT_SUBS);
            [[dont_unroll]] for (uint j = 0; j < here; j++) {
                [[unroll]] for (uint c = 0; c < TN; c++) sub[c] = load_sub(unit[c], at[c], j);
                multiply(0u, eights((b + j) * 32u));
            }
        }
    }

    if (SLICES > 1u) {
        [[unroll]] for (uint i = 0; i < TM * TN; i++) partial[(slice * TM * TN + i) * ROW_LANES + lane_x] = acc[i];
        barrier();
        if (slice > 0u) return;
        [[unroll]] for (uint i = 0; i < TM * TN; i++)
            for (uint k = 1; k < SLICES; k++) acc[i] += partial[(k * TM * TN + i) * ROW_LANES + lane_x];
    }
    [[unroll]] for (uint r = 0; r < TM; r++) {
        if (r >= num_tokens) break;
        [[unroll]] for (uint c = 0; c < TN; c++) {
            const uint n = n0 + c * ROW_LANES;
            if (n >= rows) continue;
            const uint o = (first_y() + r) * N + first_row + n;
            y[o] = add != 0u ? y[o] + acc[r * TN + c] : acc[r * TN + c];
        }
    }
}
