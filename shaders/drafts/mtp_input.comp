// mtp_input: what the multi-token-prediction block reads of each token, its embedding and the trunk's row before it, both normed:
//   y[t] = [e[t] / rms(e[t]) * enorm ; c / rms(c) * hnorm],  c = h[t - 1], of the first token the row that waited for it
//
//   0  step    [..]     u32  in   num_tokens
//   1  e       [T, D]   f32  in   embeddings
//   2  h       [T, D]   f32  in   the trunk's rows after its last norm
//   3  waited  [..]     f32  in   at waited_offset [D]: the row before the first token, zeros before the first of all
//   4  enorm   [..]     f32  in   at enorm_offset [D]
//   5  hnorm   [..]     f32  in   at hnorm_offset [D]
//   6  y       [T, 2D]  f32  out
//
// HALF: as halves instead, for products in half precision (include/half_row.glsl):
//
//   6  halves   [T', D]  u32  out
//   7  factors  [T]      f32  out
//
// Grid: (T, 1, 1), one workgroup for each token. Needs D % 4 = 0. Source: DeepSeek-V3 (arXiv 2412.19437), section 2.2.
// Reference: tests/reference/mtp.py, block_input.
#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require

layout(constant_id = 0) const uint LOCAL_SIZE = 64;
layout(constant_id = 1) const uint D = 1024;
layout(constant_id = 2) const float EPS = 1e-6;
layout(local_size_x_id = 0) in;

#include "step.glsl"
layout(binding = 1) readonly buffer E { vec4 e[]; };
layout(binding = 2) readonly buffer H { vec4 h[]; };
layout(binding = 3) readonly buffer Waited { vec4 waited[]; };
layout(binding = 4) readonly buffer Enorm { vec4 enorm[]; };
layout(binding = 5) readonly buffer Hnorm { vec4 hnorm[]; };

layout(push_constant) uniform Push { uint waited_offset, enorm_offset, hnorm_offset; };  // multiples of 4

const uint WORDS = D / 4u;

#ifdef HALF
#define WIDTH (2u * D)
#define HALVES 6
#define FACTORS 7
#include "half_row.glsl"
#else
layout(binding = 6) writeonly buffer Y { vec4 y[]; };
#include "reduce.glsl"
#endif

vec4 before(uint t, uint i) { return t == 0u ? waited[waited_offset / 4u + i] : h[(t - 1u) * WORDS + i]; }

// Word i of a token's two rows beside each other, before their norms.
vec4 raw(uint t, uint i) { return i < WORDS ? e[t * WORDS + i] : before(t, i - WORDS); }
vec4 weight(uint i) { return i < WORDS ? enorm[enorm_offset / 4u + i] : hnorm[hnorm_offset / 4u + i - WORDS]; }

void main() {
    const uint t = gl_WorkGroupID.x;
    if (t >= step[NUM_TOKENS]) return;

    vec2 sums = vec2(0.0);  // of squares, of either row
    for (uint i = gl_LocalInvocationID.x; i < WORDS; i += LOCAL_SIZE) {
        const vec4 a = e[t * WORDS + i], b = before(t, i);
        sums += vec2(dot(a, a), dot(b, b));
    }
    const float of_e = workgroup_sum(sums.x), of_h = workgroup_sum(sums.y);
    const vec2 scale = inversesqrt(vec2(of_e, of_h) / float(D) + EPS);
#ifdef HALF
    vec4 row[KEPT];
    [[unroll]] for (uint k = 0; k < KEPT; k++) {
        const uint i = k * LOCAL_SIZE + gl_LocalInvocationID.x;
        row[k] = vec4(0.0);
        if (i < 2u * WORDS) row[k] = raw(t, i) * (i < WORDS ? scale.x : scale.y) * weight(i);
    }
    store_half_row(t, row);
#else
    for (uint i = gl_LocalInvocationID.x; i < 2u * WORDS; i += LOCAL_SIZE)
        y[t * 2u * WORDS + i] = raw(t, i) * (i < WORDS ? scale.x : scale.y) * weight(i);
#endif
}
