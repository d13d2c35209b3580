// Scalar ALU on 32 bits.
#include <algorithm>
#include <map>

#include "classes.h"

namespace rdna3::WAVES {

// What the operands in the text are: result and sources; the result's register as first source; sources alone.
enum Shape { UNARY, BINARY, UPDATE, COMPARE };

struct ScalarRow {
    ScalarFunction function;
    Shape shape;
};

using ScalarTable = std::map<std::string, ScalarRow>;

static u32 nonzero(u32 value, bool& scc) {
    scc = value != 0;
    return value;
}

static u32 sum(u64 value, bool& scc) {
    scc = value >> 32 & 1;
    return (u32)value;
}

// SCC is the overflow of signed numbers.
static u32 signed_sum(i64 value, bool& scc) {
    scc = value != (i32)value;
    return (u32)value;
}

static u32 chosen(bool first, u32 a, u32 b, bool& scc) {
    scc = first;
    return first ? a : b;
}

// An immediate of 16 bits.
static u32 extended(u32 immediate) {
    return (u32)(i32)(i16)immediate;
}

static u32 reversed(u32 x) {
    u32 result = 0;
    for (int bit = 0; bit < 32; bit++)
        result |= (x >> bit & 1) << (31 - bit);
    return result;
}

// b: the field's offset, and from bit 16 on its width.
static u32 field(u32 a, u32 b) {
    const u32 width = b >> 16 & 127;
    return (u32)(a >> (b & 31) & (width >= 32 ? ~0u : (1u << width) - 1));
}

// A field that reaches past bit 31 is filled up with the sign.
static u32 signed_field(i32 a, u32 b) {
    const i32 shifted = a >> (b & 31);
    const u32 width = b >> 16 & 127;
    if (width == 0)
        return 0;
    return width >= 32 ? (u32)shifted : (u32)((i32)((u32)shifted << (32 - width)) >> (32 - width));
}

static u32 whole_quads(u32 a) {
    u32 result = 0;
    for (int quad = 0; quad < 8; quad++)
        if (a >> 4 * quad & 15)
            result |= 15u << 4 * quad;
    return result;
}

static void add_moves(ScalarTable& table) {
    table["s_mov_b32"] = {[](u32 a, u32, bool&) { return a; }, UNARY};
    table["s_movk_i32"] = {[](u32 a, u32, bool&) { return extended(a); }, UNARY};
    table["s_cmov_b32"] = {[](u32 old, u32 a, bool& scc) { return scc ? a : old; }, UPDATE};
    table["s_cmovk_i32"] = {[](u32 old, u32 a, bool& scc) { return scc ? extended(a) : old; }, UPDATE};
    table["s_cselect_b32"] = {[](u32 a, u32 b, bool& scc) { return scc ? a : b; }, BINARY};
    table["s_sext_i32_i16"] = {[](u32 a, u32, bool&) { return extended(a); }, UNARY};
    table["s_sext_i32_i8"] = {[](u32 a, u32, bool&) { return (u32)(i32)(i8)a; }, UNARY};
    table["s_pack_ll_b32_b16"] = {[](u32 a, u32 b, bool&) { return (a & 0xffff) | b << 16; }, BINARY};
    table["s_pack_lh_b32_b16"] = {[](u32 a, u32 b, bool&) { return (a & 0xffff) | (b & 0xffff0000u); }, BINARY};
    table["s_pack_hh_b32_b16"] = {[](u32 a, u32 b, bool&) { return a >> 16 | (b & 0xffff0000u); }, BINARY};
    table["s_pack_hl_b32_b16"] = {[](u32 a, u32 b, bool&) { return a >> 16 | b << 16; }, BINARY};
}

static void add_sums(ScalarTable& table) {
    table["s_add_u32"] = {[](u32 a, u32 b, bool& scc) { return sum((u64)a + b, scc); }, BINARY};
    table["s_addc_u32"] = {[](u32 a, u32 b, bool& scc) { return sum((u64)a + b + scc, scc); }, BINARY};
    table["s_sub_u32"] = {[](u32 a, u32 b, bool& scc) { return sum((u64)a - b, scc); }, BINARY};
    table["s_subb_u32"] = {[](u32 a, u32 b, bool& scc) { return sum((u64)a - b - scc, scc); }, BINARY};
    table["s_add_i32"] = {[](u32 a, u32 b, bool& scc) { return signed_sum((i64)(i32)a + (i32)b, scc); }, BINARY};
    table["s_sub_i32"] = {[](u32 a, u32 b, bool& scc) { return signed_sum((i64)(i32)a - (i32)b, scc); }, BINARY};
    table["s_addk_i32"] = {[](u32 a, u32 b, bool& scc) { return signed_sum((i64)(i32)a + (i16)b, scc); }, UPDATE};
    table["s_mulk_i32"] = {[](u32 a, u32 b, bool&) { return a * extended(b); }, UPDATE};
    table["s_mul_i32"] = {[](u32 a, u32 b, bool&) { return a * b; }, BINARY};
    table["s_mul_hi_u32"] = {[](u32 a, u32 b, bool&) { return (u32)((u64)a * b >> 32); }, BINARY};
    table["s_mul_hi_i32"] = {[](u32 a, u32 b, bool&) { return (u32)((i64)(i32)a * (i32)b >> 32); }, BINARY};
    table["s_lshl1_add_u32"] = {[](u32 a, u32 b, bool& scc) { return sum(((u64)a << 1) + b, scc); }, BINARY};
    table["s_lshl2_add_u32"] = {[](u32 a, u32 b, bool& scc) { return sum(((u64)a << 2) + b, scc); }, BINARY};
    table["s_lshl3_add_u32"] = {[](u32 a, u32 b, bool& scc) { return sum(((u64)a << 3) + b, scc); }, BINARY};
    table["s_lshl4_add_u32"] = {[](u32 a, u32 b, bool& scc) { return sum(((u64)a << 4) + b, scc); }, BINARY};
    table["s_abs_i32"] = {[](u32 a, u32, bool& scc) { return nonzero((i32)a < 0 ? -a : a, scc); }, UNARY};
    table["s_absdiff_i32"] = {
        [](u32 a, u32 b, bool& scc) { return nonzero((i32)a < (i32)b ? b - a : a - b, scc); },
        BINARY,
    };
    table["s_min_u32"] = {[](u32 a, u32 b, bool& scc) { return chosen(a < b, a, b, scc); }, BINARY};
    table["s_max_u32"] = {[](u32 a, u32 b, bool& scc) { return chosen(a > b, a, b, scc); }, BINARY};
    table["s_min_i32"] = {[](u32 a, u32 b, bool& scc) { return chosen((i32)a < (i32)b, a, b, scc); }, BINARY};
    table["s_max_i32"] = {[](u32 a, u32 b, bool& scc) { return chosen((i32)a > (i32)b, a, b, scc); }, BINARY};
}

static void add_bits(ScalarTable& table) {
    table["s_not_b32"] = {[](u32 a, u32, bool& scc) { return nonzero(~a, scc); }, UNARY};
    table["s_and_b32"] = {[](u32 a, u32 b, bool& scc) { return nonzero(a & b, scc); }, BINARY};
    table["s_or_b32"] = {[](u32 a, u32 b, bool& scc) { return nonzero(a | b, scc); }, BINARY};
    table["s_xor_b32"] = {[](u32 a, u32 b, bool& scc) { return nonzero(a ^ b, scc); }, BINARY};
    table["s_and_not1_b32"] = {[](u32 a, u32 b, bool& scc) { return nonzero(a & ~b, scc); }, BINARY};
    table["s_or_not1_b32"] = {[](u32 a, u32 b, bool& scc) { return nonzero(a | ~b, scc); }, BINARY};
    table["s_xnor_b32"] = {[](u32 a, u32 b, bool& scc) { return nonzero(~(a ^ b), scc); }, BINARY};
    table["s_nor_b32"] = {[](u32 a, u32 b, bool& scc) { return nonzero(~(a | b), scc); }, BINARY};
    table["s_nand_b32"] = {[](u32 a, u32 b, bool& scc) { return nonzero(~(a & b), scc); }, BINARY};
    table["s_lshl_b32"] = {[](u32 a, u32 b, bool& scc) { return nonzero(a << (b & 31), scc); }, BINARY};
    table["s_lshr_b32"] = {[](u32 a, u32 b, bool& scc) { return nonzero(a >> (b & 31), scc); }, BINARY};
    table["s_ashr_i32"] = {[](u32 a, u32 b, bool& scc) { return nonzero((u32)((i32)a >> (b & 31)), scc); }, BINARY};
    table["s_bfe_u32"] = {[](u32 a, u32 b, bool& scc) { return nonzero(field(a, b), scc); }, BINARY};
    table["s_bfe_i32"] = {[](u32 a, u32 b, bool& scc) { return nonzero(signed_field((i32)a, b), scc); }, BINARY};
    table["s_bfm_b32"] = {[](u32 a, u32 b, bool&) { return ((1u << (a & 31)) - 1) << (b & 31); }, BINARY};
    table["s_bitset0_b32"] = {[](u32 old, u32 a, bool&) { return old & ~(1u << (a & 31)); }, UPDATE};
    table["s_bitset1_b32"] = {[](u32 old, u32 a, bool&) { return old | 1u << (a & 31); }, UPDATE};
    table["s_bcnt1_i32_b32"] = {[](u32 a, u32, bool& scc) { return nonzero(__builtin_popcount(a), scc); }, UNARY};
    table["s_brev_b32"] = {[](u32 a, u32, bool&) { return reversed(a); }, UNARY};
    table["s_ctz_i32_b32"] = {[](u32 a, u32, bool&) { return a ? (u32)__builtin_ctz(a) : ~0u; }, UNARY};
    table["s_clz_i32_u32"] = {[](u32 a, u32, bool&) { return a ? (u32)__builtin_clz(a) : ~0u; }, UNARY};
    table["s_wqm_b32"] = {[](u32 a, u32, bool& scc) { return nonzero(whole_quads(a), scc); }, UNARY};
}

// s_cmp compares registers, s_cmpk a register and an immediate of 16 bits.
template <class T, class F>
static void add_comparison(ScalarTable& table, const std::string& name, F) {
    table["s_cmp_" + name] = {[](u32 a, u32 b, bool& scc) { return u32(scc = F{}((T)a, (T)b)); }, COMPARE};
    table["s_cmpk_" + name] = {
        [](u32 a, u32 b, bool& scc) {
            const u32 immediate = std::is_signed_v<T> ? extended(b) : b & 0xffff;
            return u32(scc = F{}((T)a, (T)immediate));
        },
        COMPARE,
    };
}

template <class T>
static void add_comparisons(ScalarTable& table, const std::string& type) {
    add_comparison<T>(table, "eq_" + type, [](T a, T b) { return a == b; });
    add_comparison<T>(table, "lg_" + type, [](T a, T b) { return a != b; });
    add_comparison<T>(table, "lt_" + type, [](T a, T b) { return a < b; });
    add_comparison<T>(table, "le_" + type, [](T a, T b) { return a <= b; });
    add_comparison<T>(table, "gt_" + type, [](T a, T b) { return a > b; });
    add_comparison<T>(table, "ge_" + type, [](T a, T b) { return a >= b; });
}

static const ScalarTable& scalar_operations() {
    static const ScalarTable table = [] {
        ScalarTable rows;
        add_moves(rows);
        add_sums(rows);
        add_bits(rows);
        add_comparisons<u32>(rows, "u32");
        add_comparisons<i32>(rows, "i32");
        rows["s_bitcmp0_b32"] = {[](u32 a, u32 b, bool& scc) { return u32(scc = !(a >> (b & 31) & 1)); }, COMPARE};
        rows["s_bitcmp1_b32"] = {[](u32 a, u32 b, bool& scc) { return u32(scc = a >> (b & 31) & 1); }, COMPARE};
        return rows;
    }();
    return table;
}

template <Shape SHAPE>
static void run_scalar(Wave& wave, const Instruction& instruction) {
    const u32 a = read_scalar(wave, instruction.source[0]);
    const u32 b = SHAPE == UNARY ? 0 : read_scalar(wave, instruction.source[1]);
    const u32 value = instruction.scalar(a, b, wave.scc);
    if (SHAPE != COMPARE)
        write_scalar(wave, instruction.result, value);
}

bool select_scalar(Text& text, Instruction& to) {
    const auto found = scalar_operations().find(text.name);
    if (found == scalar_operations().end())
        return false;
    const Shape shape = found->second.shape;
    text.expect(shape == BINARY ? 3 : 2);
    for (const Operand& operand : text.operands)
        if (operand.is_vector())
            text.refuse("operands");
    const bool has_result = shape == UNARY || shape == BINARY;
    for (size_t k = has_result ? 1 : 0; k < text.operands.size(); k++)
        to.source[to.sources++] = text.operands[k];
    to.result = text.operands[0];
    if (shape != COMPARE && to.result.kind != Operand::SCALAR)
        text.refuse("operands");
    to.scalar = found->second.function;
    to.execute = shape == UNARY ? run_scalar<UNARY> : shape == COMPARE ? run_scalar<COMPARE> : run_scalar<BINARY>;
    to.stat = SALU;
    return true;
}

}  // namespace rdna3::WAVES
