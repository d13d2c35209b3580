// A token's row of activations as halves, for products in half precision (products.glsl), by the workgroup that holds it in registers.
//
// Multiplied by a power of two that brings the greatest magnitude of the row to between 2^14 and 2^15: no half overflows, and none that is
// more than 2^-28 of the greatest loses a bit to being subnormal. Sums of products with the row are multiplied by the inverse, which is
// exact. Define WIDTH, the columns of a row, and the bindings HALVES and FACTORS before; uses halves.glsl, reduce.glsl.
#include "halves.glsl"
#include "reduce.glsl"

layout(binding = HALVES) writeonly buffer Halves { uvec2 halves[]; };     // [T', WIDTH / 2] u32, two columns in each
layout(binding = FACTORS) writeonly buffer Factors { float factors[]; };  // [T]

const uint KEPT = (WIDTH / 4u + LOCAL_SIZE - 1u) / LOCAL_SIZE;  // vec4 of one invocation: i, i + LOCAL_SIZE, ... of the row

// (power of two, its inverse) for a row with this greatest magnitude. Both normal numbers, whatever it is; of zeros and of numbers below
// 2^-111 the greatest power; for infinity, which stays so, one.
vec2 half_scale(float most) {
    const uint exponent = floatBitsToUint(most) >> 23, power = min(268u - exponent, 253u);  // each with the bias of 127
    return uintBitsToFloat(uvec2(power, 254u - power) << 23);
}

// Call in uniform control flow. What is past the end of the row is zero, or a value of the row again.
void store_half_row(uint t, vec4 row[KEPT]) {
    vec4 most = vec4(0.0);
    [[unroll]] for (uint i = 0; i < KEPT; i++) most = max(most, abs(row[i]));
    const vec2 scale = half_scale(workgroup_max(max(max(most.x, most.y), max(most.z, most.w))));
    [[unroll]] for (uint i = 0; i < KEPT; i++) {
        const uint c = i * LOCAL_SIZE + gl_LocalInvocationID.x;
        if (c < WIDTH / 4u) halves[t * (WIDTH / 4u) + c] = pack_halves(row[i] * scale.x);
    }
    if (gl_LocalInvocationID.x == 0u) factors[t] = scale.y;
}
