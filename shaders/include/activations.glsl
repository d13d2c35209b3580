// The sigmoid family, in forms that neither overflow nor lose their small values.
float sigmoid(float v) { return 1.0 / (1.0 + exp(-v)); }
float silu(float v) { return v / (1.0 + exp(-v)); }
vec4 silu(vec4 v) { return v / (1.0 + exp(-v)); }

// ln(1 + e^v). Above 20 it is v within f32's rounding; below -5 the series of ln(1 + u) keeps the digits that 1 + u would lose.
float softplus(float v) {
    if (v > 20.0) return v;
    const float u = exp(v);
    return v < -5.0 ? u * (1.0 - u * (0.5 - u * (1.0 / 3.0))) : log(1.0 + u);
}
