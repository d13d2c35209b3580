// Vector operations on words: integers, bits, moves.
#include <algorithm>

#include "vector.h"

namespace rdna3::WAVES {

template <class T>
static inline T median(T a, T b, T c) {
    return std::max(std::min(a, b), std::min(std::max(a, b), c));
}

static inline i32 signed24(u32 x) {
    return (i32)(x << 8) >> 8;
}

static inline u32 field(u32 bits, u32 offset, u32 width) {
    return bits >> (offset & 31) & ((1u << (width & 31)) - 1);
}

// A field that reaches past bit 31 is filled up with the sign.
static inline i32 signed_field(i32 bits, u32 offset, u32 width) {
    const u32 unused = 32 - (width & 31);
    return unused == 32 ? 0 : (i32)((u32)(bits >> (offset & 31)) << unused) >> unused;
}

static inline u32 joined(u32 high, u32 low, u32 shift) {
    return (u32)(((u64)high << 32 | low) >> shift);
}

static inline u32 reversed(u32 x) {
    x = (x >> 1 & 0x55555555) | (x & 0x55555555) << 1;
    x = (x >> 2 & 0x33333333) | (x & 0x33333333) << 2;
    x = (x >> 4 & 0x0f0f0f0f) | (x & 0x0f0f0f0f) << 4;
    return __builtin_bswap32(x);
}

// v_perm: each byte of the selector names one of 8 bytes, a sign of a 16-bit part, 0 or 255.
static inline u32 chosen_bytes(u32 high, u32 low, u32 selector) {
    const u64 bytes = (u64)high << 32 | low;
    u32 result = 0;
    for (int k = 0; k < 4; k++) {
        const u32 select = selector >> 8 * k & 255;
        u32 byte = 255;
        if (select < 8)
            byte = bytes >> 8 * select & 255;
        else if (select < 12)
            byte = bytes >> (16 * (select - 8) + 15) & 1 ? 255 : 0;
        else if (select == 12)
            byte = 0;
        result |= byte << 8 * k;
    }
    return result;
}

static void add_bits(VectorTable& table) {
    table["v_mov_b32"] = moving([](u32 a) { return a; });
    table["v_not_b32"] = operation([](u32 a) { return ~a; });
    table["v_and_b32"] = operation([](u32 a, u32 b) { return a & b; });
    table["v_or_b32"] = operation([](u32 a, u32 b) { return a | b; });
    table["v_xor_b32"] = operation([](u32 a, u32 b) { return a ^ b; });
    table["v_xnor_b32"] = operation([](u32 a, u32 b) { return ~(a ^ b); });
    table["v_lshlrev_b32"] = operation([](u32 a, u32 b) { return b << (a & 31); });
    table["v_lshrrev_b32"] = operation([](u32 a, u32 b) { return b >> (a & 31); });
    table["v_ashrrev_i32"] = operation([](u32 a, i32 b) { return b >> (a & 31); });
    table["v_lshl_or_b32"] = operation([](u32 a, u32 b, u32 c) { return a << (b & 31) | c; });
    table["v_and_or_b32"] = operation([](u32 a, u32 b, u32 c) { return (a & b) | c; });
    table["v_or3_b32"] = operation([](u32 a, u32 b, u32 c) { return a | b | c; });
    table["v_xor3_b32"] = operation([](u32 a, u32 b, u32 c) { return a ^ b ^ c; });
    table["v_bfe_u32"] = operation([](u32 a, u32 b, u32 c) { return field(a, b, c); });
    table["v_bfe_i32"] = operation([](i32 a, u32 b, u32 c) { return signed_field(a, b, c); });
    table["v_bfi_b32"] = operation([](u32 a, u32 b, u32 c) { return (a & b) | (~a & c); });
    table["v_alignbit_b32"] = operation([](u32 a, u32 b, u32 c) { return joined(a, b, c & 31); });
    table["v_alignbyte_b32"] = operation([](u32 a, u32 b, u32 c) { return joined(a, b, 8 * (c & 3)); });
    table["v_perm_b32"] = operation([](u32 a, u32 b, u32 c) { return chosen_bytes(a, b, c); });
    table["v_bcnt_u32_b32"] = operation([](u32 a, u32 b) { return (u32)__builtin_popcount(a) + b; });
    table["v_bfrev_b32"] = operation([](u32 a) { return reversed(a); });
    table["v_clz_i32_u32"] = operation([](u32 a) { return a ? __builtin_clz(a) : -1; });
    table["v_ctz_i32_b32"] = operation([](u32 a) { return a ? __builtin_ctz(a) : -1; });
    table["v_cndmask_b32"] = moving([](u32 a, u32 b, bool mask) { return mask ? b : a; });
}

static void add_sums(VectorTable& table) {
    table["v_add_nc_u32"] = operation([](u32 a, u32 b) { return a + b; });
    table["v_sub_nc_u32"] = operation([](u32 a, u32 b) { return a - b; });
    table["v_subrev_nc_u32"] = operation([](u32 a, u32 b) { return b - a; });
    table["v_add_nc_i32"] = table["v_add_nc_u32"];
    table["v_sub_nc_i32"] = table["v_sub_nc_u32"];
    table["v_add3_u32"] = operation([](u32 a, u32 b, u32 c) { return a + b + c; });
    table["v_lshl_add_u32"] = operation([](u32 a, u32 b, u32 c) { return (a << (b & 31)) + c; });
    table["v_add_lshl_u32"] = operation([](u32 a, u32 b, u32 c) { return (a + b) << (c & 31); });
    table["v_xad_u32"] = operation([](u32 a, u32 b, u32 c) { return (a ^ b) + c; });
}

static void add_products(VectorTable& table) {
    table["v_mul_u32_u24"] = operation([](u32 a, u32 b) { return (a & 0xffffff) * (b & 0xffffff); });
    table["v_mul_i32_i24"] = operation([](u32 a, u32 b) { return (u32)signed24(a) * (u32)signed24(b); });
    table["v_mad_u32_u24"] = operation([](u32 a, u32 b, u32 c) { return (a & 0xffffff) * (b & 0xffffff) + c; });
    table["v_mad_i32_i24"] = operation([](u32 a, u32 b, u32 c) { return (u32)signed24(a) * (u32)signed24(b) + c; });
    table["v_mul_lo_u32"] = slow([](u32 a, u32 b) { return a * b; });
    table["v_mul_hi_u32"] = slow([](u32 a, u32 b) { return (u32)((u64)a * b >> 32); });
    table["v_mul_hi_i32"] = slow([](i32 a, i32 b) { return (i32)((i64)a * b >> 32); });
}

static void add_choices(VectorTable& table) {
    table["v_min_u32"] = operation([](u32 a, u32 b) { return std::min(a, b); });
    table["v_max_u32"] = operation([](u32 a, u32 b) { return std::max(a, b); });
    table["v_min_i32"] = operation([](i32 a, i32 b) { return std::min(a, b); });
    table["v_max_i32"] = operation([](i32 a, i32 b) { return std::max(a, b); });
    table["v_min3_u32"] = operation([](u32 a, u32 b, u32 c) { return std::min(std::min(a, b), c); });
    table["v_max3_u32"] = operation([](u32 a, u32 b, u32 c) { return std::max(std::max(a, b), c); });
    table["v_min3_i32"] = operation([](i32 a, i32 b, i32 c) { return std::min(std::min(a, b), c); });
    table["v_max3_i32"] = operation([](i32 a, i32 b, i32 c) { return std::max(std::max(a, b), c); });
    table["v_med3_u32"] = operation([](u32 a, u32 b, u32 c) { return median(a, b, c); });
    table["v_med3_i32"] = operation([](i32 a, i32 b, i32 c) { return median(a, b, c); });
}

// Counts the bits of a mask below each lane, plus b; the mask's first or second 32 lanes.
template <int FIRST>
static void count_below(const u32* mask, const u32* b, const u32*, u32* result) {
    for (int lane = 0; lane < LANES; lane++) {
        const int below = lane - FIRST;
        const u32 lanes = below <= 0 ? 0 : below >= 32 ? ~0u : (1u << below) - 1;
        result[lane] = (u32)__builtin_popcount(mask[lane] & lanes) + b[lane];
    }
}

const VectorTable& integer_operations() {
    static const VectorTable table = [] {
        VectorTable rows;
        add_bits(rows);
        add_sums(rows);
        add_products(rows);
        add_choices(rows);
        rows["v_mbcnt_lo_u32_b32"] = {count_below<0>, Type::WORD, {Type::WORD, Type::WORD}, 2};
        rows["v_mbcnt_hi_u32_b32"] = {count_below<32>, Type::WORD, {Type::WORD, Type::WORD}, 2};
        return rows;
    }();
    return table;
}

}  // namespace rdna3::WAVES
