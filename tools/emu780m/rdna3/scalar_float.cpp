// Scalar ALU on floats, which chips from gfx1150 on have. As the vector operations on floats: denormals are the
// processor's setting.
#include <cmath>
#include <map>

#include "classes.h"
#include "floats.h"
#include "halves.h"

namespace rdna3::WAVES {

// Comparisons set SCC and have no result; the others leave SCC alone. An accumulation reads its result's register too.
enum FloatShape { ONE, TWO, THREE, ACCUMULATE, COMPARISON };

struct FloatRow {
    ScalarFunction3 function;
    FloatShape shape;
};

using FloatTable = std::map<std::string, FloatRow>;

static u32 fused(u32 a, u32 b, u32 c) {
    return as_bits(__builtin_fmaf(as_float(a), as_float(b), as_float(c)));
}

static u32 two_halves(u32 a, u32 b) {
    return round_to_half(as_float(a), TOWARD_ZERO) | (u32)round_to_half(as_float(b), TOWARD_ZERO) << 16;
}

static void add_arithmetic(FloatTable& table) {
    table["s_add_f32"] = {[](u32 a, u32 b, u32) { return as_bits(as_float(a) + as_float(b)); }, TWO};
    table["s_sub_f32"] = {[](u32 a, u32 b, u32) { return as_bits(as_float(a) - as_float(b)); }, TWO};
    table["s_mul_f32"] = {[](u32 a, u32 b, u32) { return as_bits(as_float(a) * as_float(b)); }, TWO};
    table["s_min_f32"] = {[](u32 a, u32 b, u32) { return as_bits(least(as_float(a), as_float(b))); }, TWO};
    table["s_max_f32"] = {[](u32 a, u32 b, u32) { return as_bits(most(as_float(a), as_float(b))); }, TWO};
    table["s_fmac_f32"] = {fused, ACCUMULATE};
    table["s_fmaak_f32"] = {fused, THREE};
    table["s_fmamk_f32"] = {fused, THREE};
}

static void add_rounding(FloatTable& table) {
    table["s_floor_f32"] = {[](u32 a, u32, u32) { return as_bits(std::floor(as_float(a))); }, ONE};
    table["s_ceil_f32"] = {[](u32 a, u32, u32) { return as_bits(std::ceil(as_float(a))); }, ONE};
    table["s_trunc_f32"] = {[](u32 a, u32, u32) { return as_bits(std::trunc(as_float(a))); }, ONE};
    table["s_rndne_f32"] = {[](u32 a, u32, u32) { return as_bits(std::nearbyint(as_float(a))); }, ONE};
}

static void add_conversions(FloatTable& table) {
    table["s_cvt_f32_u32"] = {[](u32 a, u32, u32) { return as_bits((float)a); }, ONE};
    table["s_cvt_f32_i32"] = {[](u32 a, u32, u32) { return as_bits((float)(i32)a); }, ONE};
    table["s_cvt_u32_f32"] = {[](u32 a, u32, u32) { return to_unsigned(as_float(a)); }, ONE};
    table["s_cvt_i32_f32"] = {[](u32 a, u32, u32) { return (u32)to_signed(as_float(a)); }, ONE};
    table["s_cvt_f32_f16"] = {[](u32 a, u32, u32) { return as_bits(half_to_float(a & 0xffff)); }, ONE};
    table["s_cvt_hi_f32_f16"] = {[](u32 a, u32, u32) { return as_bits(half_to_float(a >> 16)); }, ONE};
    table["s_cvt_f16_f32"] = {[](u32 a, u32, u32) { return (u32)to_half(as_float(a)).bits; }, ONE};
    table["s_cvt_pk_rtz_f16_f32"] = {[](u32 a, u32 b, u32) { return two_halves(a, b); }, TWO};
}

// Each comparison and its opposite, which a NaN fulfils.
template <class F>
static void add_comparison(FloatTable& table, const char* name, const char* opposite, F) {
    const auto full = [](const char* name) { return std::string("s_cmp_") + name + "_f32"; };
    table[full(name)] = {[](u32 a, u32 b, u32) { return u32(F{}(as_float(a), as_float(b))); }, COMPARISON};
    table[full(opposite)] = {[](u32 a, u32 b, u32) { return u32(!F{}(as_float(a), as_float(b))); }, COMPARISON};
}

static void add_comparisons(FloatTable& table) {
    add_comparison(table, "lt", "nlt", [](float a, float b) { return a < b; });
    add_comparison(table, "eq", "neq", [](float a, float b) { return a == b; });
    add_comparison(table, "le", "nle", [](float a, float b) { return a <= b; });
    add_comparison(table, "gt", "ngt", [](float a, float b) { return a > b; });
    add_comparison(table, "lg", "nlg", [](float a, float b) { return a < b || a > b; });
    add_comparison(table, "ge", "nge", [](float a, float b) { return a >= b; });
    add_comparison(table, "o", "u", [](float a, float b) { return a == a && b == b; });
}

static const FloatTable& operations() {
    static const FloatTable table = [] {
        FloatTable rows;
        add_arithmetic(rows);
        add_rounding(rows);
        add_conversions(rows);
        add_comparisons(rows);
        return rows;
    }();
    return table;
}

template <bool COMPARES>
static void run_scalar_float(Wave& wave, const Instruction& instruction) {
    u32 sources[3] = {};
    for (int k = 0; k < instruction.sources; k++)
        sources[k] = read_scalar(wave, instruction.source[k]);
    const u32 value = instruction.scalar3(sources[0], sources[1], sources[2]);
    if (COMPARES)
        wave.scc = value;
    else
        write_scalar(wave, instruction.result, value);
}

bool select_scalar_float(Text& text, Instruction& to) {
    const auto found = operations().find(text.name);
    if (found == operations().end())
        return false;
    const FloatShape shape = found->second.shape;
    text.expect(shape == THREE ? 4 : shape == TWO || shape == ACCUMULATE ? 3 : 2);
    for (const Operand& operand : text.operands)
        if (operand.is_vector())
            text.refuse("operands");
    for (size_t k = shape == COMPARISON ? 0 : 1; k < text.operands.size(); k++)
        to.source[to.sources++] = text.operands[k];
    if (shape == ACCUMULATE)
        to.source[to.sources++] = text.operands[0];
    to.result = text.operands[0];
    if (shape != COMPARISON && to.result.kind != Operand::SCALAR)
        text.refuse("operands");
    to.scalar3 = found->second.function;
    to.execute = shape == COMPARISON ? run_scalar_float<true> : run_scalar_float<false>;
    to.stat = SALU;
    return true;
}

}  // namespace rdna3::WAVES
