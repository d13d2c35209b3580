// Vector operations on halves and on integers in one half of a register.
#include "vector.h"

namespace rdna3::WAVES {

static inline double wide(Half x) {
    return value_of(x);
}

static inline u32 packed(u32 low, u32 high) {
    return (low & 0xffff) | high << 16;
}

static inline u32 packed_toward_zero(float low, float high) {
    return packed(round_to_half(low, TOWARD_ZERO), round_to_half(high, TOWARD_ZERO));
}

// Products of halves are exact in a float; each sum is rounded.
static inline float dot2(u32 a, u32 b, float c) {
    const float low = __builtin_fmaf(half_to_float(a), half_to_float(b), c);
    return __builtin_fmaf(half_to_float(a >> 16), half_to_float(b >> 16), low);
}

static void add_halves(VectorTable& table) {
    table["v_add_f16"] = operation([](Half a, Half b) { return to_half(wide(a) + wide(b)); });
    table["v_sub_f16"] = operation([](Half a, Half b) { return to_half(wide(a) - wide(b)); });
    table["v_subrev_f16"] = operation([](Half a, Half b) { return to_half(wide(b) - wide(a)); });
    table["v_mul_f16"] = operation([](Half a, Half b) { return to_half(wide(a) * wide(b)); });
    table["v_fma_f16"] = operation([](Half a, Half b, Half c) { return half_fma(a, b, c); });
    table["v_fmac_f16"] = accumulating([](Half a, Half b, Half c) { return half_fma(a, b, c); });
    table["v_cvt_f32_f16"] = operation([](Half a) { return value_of(a); });
    table["v_cvt_f16_f32"] = operation([](float a) { return to_half(a); });
    table["v_cvt_f16_u16"] = operation([](u16 a) { return to_half((double)a); });
    table["v_cvt_f16_i16"] = operation([](i16 a) { return to_half((double)a); });
    table["v_cvt_pk_rtz_f16_f32"] = operation([](float a, float b) { return packed_toward_zero(a, b); });
    table["v_cvt_pkrtz_f16_f32"] = table["v_cvt_pk_rtz_f16_f32"];
    table["v_pack_b32_f16"] = operation([](Half a, Half b) { return packed(a.bits, b.bits); });
    table["v_dot2acc_f32_f16"] = accumulating([](Halves a, Halves b, float c) {
        return dot2(a.bits, b.bits, c);
    });
    table["v_dot2c_f32_f16"] = table["v_dot2acc_f32_f16"];
}

static void add_integers(VectorTable& table) {
    table["v_mov_b16"] = moving([](u16 a) { return a; });
    table["v_and_b16"] = operation([](u16 a, u16 b) { return (u16)(a & b); });
    table["v_or_b16"] = operation([](u16 a, u16 b) { return (u16)(a | b); });
    table["v_lshlrev_b16"] = operation([](u16 a, u16 b) { return (u16)(b << (a & 15)); });
    table["v_lshrrev_b16"] = operation([](u16 a, u16 b) { return (u16)(b >> (a & 15)); });
    table["v_add_nc_u16"] = operation([](u16 a, u16 b) { return (u16)(a + b); });
    table["v_sub_nc_u16"] = operation([](u16 a, u16 b) { return (u16)(a - b); });
    table["v_mul_lo_u16"] = operation([](u16 a, u16 b) { return (u16)((u32)a * b); });
    table["v_cndmask_b16"] = moving([](u16 a, u16 b, bool mask) { return mask ? b : a; });
}

const VectorTable& half_operations() {
    static const VectorTable table = [] {
        VectorTable rows;
        add_halves(rows);
        add_integers(rows);
        return rows;
    }();
    return table;
}

}  // namespace rdna3::WAVES
