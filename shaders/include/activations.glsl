// The sigmoid family, in forms that neither overflow nor lose their small values.
float sigmoid(float v) { return 1.0 / (1.0 + exp(-v)); }
vec4 sigmoid(vec4 v) { return 1.0 / (1.0 + exp(-v)); }
float silu(float v) { return v / (1.0 + exp(-v)); }
vec4 silu(vec4 v) { return v / (1.0 + exp(-v)); }

// ln(1 + e^v) = max(v, 0) + ln(1 + u), u = e^-|v|; with s = u / (2 + u), at most 1/3, ln(1 + u) = 2 (s + s^3 / 3 + s^5 / 5 + ...).
// Not log(1 + u): rounding, and an error of 2^-21 that Vulkan allows log near 1, would be large parts of a small result.
float softplus(float v) {
    const float u = exp(-abs(v)), s = u / (2.0 + u), q = s * s;
    const float tail = q * (1.0 / 3.0 + q * (1.0 / 5.0 + q * (1.0 / 7.0 + q * (1.0 / 9.0 + q * (1.0 / 11.0 + q / 13.0)))));
    return max(v, 0.0) + 2.0 * s * (1.0 + tail);
}
