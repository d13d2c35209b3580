// Vector operations on floats, and conversions from and to integers.
//
// The special functions (rcp, rsq, sqrt, exp, log, sin, cos) are rounded right here; the hardware's may differ in the
// last bit. Whether denormals count as 0 is the processor's own setting, made for each dispatch.
#include <algorithm>
#include <cmath>

#include "floats.h"
#include "vector.h"

namespace rdna3::WAVES {

static inline float median(float a, float b, float c) {
    if (a != a || b != b || c != c)
        return least(least(a, b), c);
    return most(least(a, b), least(most(a, b), c));
}

// The special functions never give a denormal.
static inline float flushed(double value) {
    const u32 bits = as_bits((float)value);
    return as_float(bits & 0x7f800000 ? bits : bits & 0x80000000u);
}

static inline float without_infinity_of_zero(float a, float b) {
    return a == 0 || b == 0 ? 0.0f : a * b;
}

static inline float mantissa(float x) {
    int exponent = 0;
    return std::isfinite(x) ? frexpf(x, &exponent) : x;
}

static inline i32 exponent(float x) {
    int exponent = 0;
    if (std::isfinite(x))
        (void)frexpf(x, &exponent);
    return exponent;
}

static const double TURN = 2 * M_PI;  // angles are in turns

static void add_arithmetic(VectorTable& table) {
    const auto fma = [](float a, float b, float c) { return __builtin_fmaf(a, b, c); };
    table["v_add_f32"] = operation([](float a, float b) { return a + b; });
    table["v_sub_f32"] = operation([](float a, float b) { return a - b; });
    table["v_subrev_f32"] = operation([](float a, float b) { return b - a; });
    table["v_mul_f32"] = operation([](float a, float b) { return a * b; });
    table["v_mul_legacy_f32"] = operation([](float a, float b) { return without_infinity_of_zero(a, b); });
    table["v_mul_dx9_zero_f32"] = table["v_mul_legacy_f32"];
    table["v_max_f32"] = operation([](float a, float b) { return most(a, b); });
    table["v_min_f32"] = operation([](float a, float b) { return least(a, b); });
    table["v_max3_f32"] = operation([](float a, float b, float c) { return most(most(a, b), c); });
    table["v_min3_f32"] = operation([](float a, float b, float c) { return least(least(a, b), c); });
    table["v_med3_f32"] = operation([](float a, float b, float c) { return median(a, b, c); });
    table["v_fma_f32"] = operation(fma);
    table["v_fmac_f32"] = accumulating(fma);
    table["v_fmaak_f32"] = operation(fma);
    // The text has the constant in the middle: a * k + c.
    table["v_fmamk_f32"] = operation([](float a, float k, float c) { return __builtin_fmaf(a, k, c); });
    table["v_ldexp_f32"] = operation([](float a, i32 b) { return ldexpf(a, b); });
    table["v_fract_f32"] = operation([](float a) { return a - floorf(a); });
    table["v_floor_f32"] = operation([](float a) { return floorf(a); });
    table["v_ceil_f32"] = operation([](float a) { return ceilf(a); });
    table["v_trunc_f32"] = operation([](float a) { return truncf(a); });
    table["v_rndne_f32"] = operation([](float a) { return rintf(a); });
    table["v_frexp_mant_f32"] = operation([](float a) { return mantissa(a); });
    table["v_frexp_exp_i32_f32"] = operation([](float a) { return exponent(a); });
}

static void add_special(VectorTable& table) {
    table["v_rcp_f32"] = slow([](float a) { return flushed(1.0f / a); });
    table["v_rcp_iflag_f32"] = table["v_rcp_f32"];
    table["v_rsq_f32"] = slow([](float a) { return flushed(1.0 / sqrt((double)a)); });
    table["v_sqrt_f32"] = slow([](float a) { return flushed(sqrtf(a)); });
    table["v_exp_f32"] = slow([](float a) { return flushed(exp2((double)a)); });
    table["v_log_f32"] = slow([](float a) { return flushed(log2((double)a)); });
    table["v_sin_f32"] = slow([](float a) { return (float)sin(TURN * (double)a); });
    table["v_cos_f32"] = slow([](float a) { return (float)cos(TURN * (double)a); });
}

static void add_conversions(VectorTable& table) {
    table["v_cvt_f32_u32"] = operation([](u32 a) { return (float)a; });
    table["v_cvt_f32_i32"] = operation([](i32 a) { return (float)a; });
    table["v_cvt_u32_f32"] = operation([](float a) { return to_unsigned(a); });
    table["v_cvt_i32_f32"] = operation([](float a) { return to_signed(a); });
    table["v_cvt_f32_ubyte0"] = operation([](u32 a) { return (float)(a & 255); });
    table["v_cvt_f32_ubyte1"] = operation([](u32 a) { return (float)(a >> 8 & 255); });
    table["v_cvt_f32_ubyte2"] = operation([](u32 a) { return (float)(a >> 16 & 255); });
    table["v_cvt_f32_ubyte3"] = operation([](u32 a) { return (float)(a >> 24); });
}

const VectorTable& float_operations() {
    static const VectorTable table = [] {
        VectorTable rows;
        add_arithmetic(rows);
        add_special(rows);
        add_conversions(rows);
        return rows;
    }();
    return table;
}

}  // namespace rdna3::WAVES
