// VOP3P: two halves at once, v_fma_mix, dot products. Each half of a source is chosen by op_sel and op_sel_hi; neg_lo
// and neg_hi change their signs.
#include <map>

#include "classes.h"
#include "vector.h"

namespace rdna3::WAVES {

static u16 chosen_half(u32 word, int k, bool upper, const Instruction& instruction) {
    const u8 select = upper ? instruction.select_high : instruction.select_low;
    const u8 negate = upper ? instruction.negate_high : instruction.negate_low;
    const u16 half = (u16)(select >> k & 1 ? word >> 16 : word);
    return negate >> k & 1 ? half ^ 0x8000 : half;
}

// The values of up to three sources, by source and lane.
struct Sources {
    alignas(64) u32 room[3][LANES];
    const u32* from[3];

    Sources(const Wave& wave, const Instruction& instruction, int count = 3) {
        for (int k = 0; k < count; k++)
            from[k] = read(wave, instruction.source[k], room[k]);
    }
    const u32* operator[](int k) const { return from[k]; }
};

using HalfFunction = Half (*)(Half a, Half b, Half c);

template <HalfFunction FUNCTION>
static void run_packed(Wave& wave, const Instruction& instruction) {
    const Sources from(wave, instruction, instruction.sources);
    alignas(64) u32 values[LANES];
    for (int lane = 0; lane < LANES; lane++) {
        u32 result = 0;
        for (int upper = 0; upper < 2; upper++) {
            Half x[3] = {};
            for (int k = 0; k < instruction.sources; k++)
                x[k] = {chosen_half(from[k][lane], k, upper, instruction)};
            result |= (u32)FUNCTION(x[0], x[1], x[2]).bits << 16 * upper;
        }
        values[lane] = result;
    }
    write(wave, instruction.result, values);
}

static Half add(Half a, Half b, Half) {
    return to_half((double)value_of(a) + value_of(b));
}

static Half multiply(Half a, Half b, Half) {
    return to_half((double)value_of(a) * value_of(b));
}

// A NaN loses; -0 is less than 0.
static Half most(Half a, Half b, Half) {
    const float x = value_of(a);
    const float y = value_of(b);
    if (x != x)
        return b;
    return x > y || y != y || (x == y && !std::signbit(x)) ? a : b;
}

static Half least(Half a, Half b, Half) {
    const float x = value_of(a);
    const float y = value_of(b);
    if (x != x)
        return b;
    return x < y || y != y || (x == y && std::signbit(x)) ? a : b;
}

enum Mix { WHOLE, LOW_HALF, HIGH_HALF };

// Each source is a float or (op_sel_hi) a half (op_sel: the high one); neg_lo and neg_hi: its sign and |x|.
template <Mix RESULT>
static void run_mix(Wave& wave, const Instruction& instruction) {
    const Sources from(wave, instruction);
    alignas(64) u32 values[LANES];
    for (int lane = 0; lane < LANES; lane++) {
        float x[3];
        for (int k = 0; k < 3; k++) {
            const u32 word = from[k][lane];
            const bool is_half = instruction.select_high >> k & 1;
            x[k] = is_half ? half_to_float(instruction.select_low >> k & 1 ? word >> 16 : word) : as_float(word);
            if (instruction.negate_high >> k & 1)
                x[k] = std::fabs(x[k]);
            if (instruction.negate_low >> k & 1)
                x[k] = -x[k];
        }
        values[lane] = as_bits(__builtin_fmaf(x[0], x[1], x[2]));
    }
    scale_and_clamp(instruction, values);
    if (RESULT != WHOLE)
        for (int lane = 0; lane < LANES; lane++)
            values[lane] = to_half(as_float(values[lane])).bits;
    write(wave, instruction.result, values);
}

// neg_lo of a source: its bytes are signed.
static void run_dot4(Wave& wave, const Instruction& instruction) {
    const Sources from(wave, instruction);
    alignas(64) u32 values[LANES];
    const auto byte = [&](int k, int lane, int place) {
        const u8 value = (u8)(from[k][lane] >> 8 * place);
        return instruction.negate_low >> k & 1 ? (i32)(i8)value : (i32)value;
    };
    for (int lane = 0; lane < LANES; lane++) {
        u32 sum = from[2][lane];
        for (int place = 0; place < 4; place++)
            sum += (u32)(byte(0, lane, place) * byte(1, lane, place));
        values[lane] = sum;
    }
    write(wave, instruction.result, values);
}

// The order of the sums within is not documented: here low halves first, each sum rounded.
static void run_dot2(Wave& wave, const Instruction& instruction) {
    const Sources from(wave, instruction);
    alignas(64) u32 values[LANES];
    for (int lane = 0; lane < LANES; lane++) {
        float sum = as_float(from[2][lane]);
        if (instruction.negate_low >> 2 & 1)
            sum = -sum;
        for (int upper = 0; upper < 2; upper++) {
            const float a = half_to_float(chosen_half(from[0][lane], 0, upper, instruction));
            const float b = half_to_float(chosen_half(from[1][lane], 1, upper, instruction));
            sum = __builtin_fmaf(a, b, sum);
        }
        values[lane] = as_bits(sum);
    }
    write(wave, instruction.result, values);
}

static void take_selection(Text& text, Instruction& to) {
    to.select_low = (u8)text.bits("op_sel");
    to.select_high = (u8)text.bits("op_sel_hi", 7);
    to.negate_low = (u8)text.bits("neg_lo");
    to.negate_high = (u8)text.bits("neg_hi");
}

// v_fma_mix writes signs as other instructions do, -v0 and |v0|.
static void take_mix(Text& text, Instruction& to) {
    to.select_low = (u8)text.bits("op_sel");
    to.select_high = (u8)text.bits("op_sel_hi");
    to.clamp = text.word("clamp");
    text.takes_signs = true;
    for (int k = 0; k < 3; k++) {
        Operand& source = to.source[k];
        to.negate_low |= source.negative << k;
        to.negate_high |= source.absolute << k;
        source.negative = source.absolute = false;
        if (to.select_high >> k & 1)
            half_constant(source);
    }
}

bool select_packed(Text& text, Instruction& to) {
    struct Row {
        void (*execute)(Wave&, const Instruction&);
        size_t operands;
        enum { HALVES, MIX, BYTES, SUM } kind;
    };
    static const std::map<std::string, Row> rows = {
        {"v_pk_fma_f16", {run_packed<half_fma>, 4, Row::HALVES}},
        {"v_pk_add_f16", {run_packed<add>, 3, Row::HALVES}},
        {"v_pk_mul_f16", {run_packed<multiply>, 3, Row::HALVES}},
        {"v_pk_max_f16", {run_packed<most>, 3, Row::HALVES}},
        {"v_pk_min_f16", {run_packed<least>, 3, Row::HALVES}},
        {"v_fma_mix_f32", {run_mix<WHOLE>, 4, Row::MIX}},
        {"v_fma_mixlo_f16", {run_mix<LOW_HALF>, 4, Row::MIX}},
        {"v_fma_mixhi_f16", {run_mix<HIGH_HALF>, 4, Row::MIX}},
        {"v_dot4_i32_iu8", {run_dot4, 4, Row::BYTES}},
        {"v_dot2_f32_f16", {run_dot2, 4, Row::SUM}},
    };
    const auto found = rows.find(text.name);
    if (found == rows.end() || text.dpp)
        return false;
    const Row& row = found->second;
    text.expect(row.operands);
    take_operands(text, to);
    if (row.kind == Row::MIX)
        take_mix(text, to);
    else
        take_selection(text, to);
    if (row.kind == Row::HALVES)
        for (int k = 0; k < to.sources; k++)
            half_constant(to.source[k]);
    // Bytes are not chosen, and only two of the operands have signs.
    if (row.kind == Row::BYTES && (to.select_low || to.select_high != 7 || to.negate_low > 3 || to.negate_high))
        text.refuse("modifier");
    if (row.kind == Row::SUM && (to.select_low > 3 || to.negate_high > 3))
        text.refuse("modifier");
    if (row.kind == Row::SUM && (to.source[0].decimal || to.source[1].decimal))
        text.refuse("operand");
    if (!to.result.is_vector())
        text.refuse("operands");
    if (text.name == "v_fma_mixlo_f16" || text.name == "v_fma_mixhi_f16") {
        const bool high = text.name == "v_fma_mixhi_f16";
        to.result.half = true;
        to.result.high = high;
    }
    to.execute = row.execute;
    to.stat = VALU;
    return true;
}

}  // namespace rdna3::WAVES
