// Vector comparisons: a lane mask out of two operands, into VCC, scalar registers or (v_cmpx) EXEC.
#include "classes.h"
#include "vector.h"

namespace rdna3::WAVES {

struct Comparison {
    CompareFunction compare;
    Type type;
};

using ComparisonTable = std::map<std::string, Comparison>;

template <class T, class F>
static Comparison comparison(F) {
    const CompareFunction compare = [](const u32* a, const u32* b) {
        Mask mask = 0;
        for (int lane = 0; lane < LANES; lane++) {
            if constexpr (std::is_same_v<T, Half>)
                mask |= (Mask)F{}(half_to_float(a[lane]), half_to_float(b[lane])) << lane;
            else
                mask |= (Mask)F{}(from_bits<T>(a[lane]), from_bits<T>(b[lane])) << lane;
        }
        return mask;
    };
    return {compare, type_of<T>()};
}

template <class T>
static void add_order(ComparisonTable& table, const std::string& type) {
    table["lt_" + type] = comparison<T>([](auto a, auto b) { return a < b; });
    table["le_" + type] = comparison<T>([](auto a, auto b) { return a <= b; });
    table["gt_" + type] = comparison<T>([](auto a, auto b) { return a > b; });
    table["ge_" + type] = comparison<T>([](auto a, auto b) { return a >= b; });
    table["eq_" + type] = comparison<T>([](auto a, auto b) { return a == b; });
}

template <class T>
static void add_integers(ComparisonTable& table, const std::string& type) {
    add_order<T>(table, type);
    table["ne_" + type] = comparison<T>([](auto a, auto b) { return a != b; });
}

// With a NaN all of lt, le, gt, ge, eq and lg are false.
template <class T>
static void add_floats(ComparisonTable& table, const std::string& type) {
    add_order<T>(table, type);
    table["lg_" + type] = comparison<T>([](auto a, auto b) { return a < b || a > b; });
    table["nlt_" + type] = comparison<T>([](auto a, auto b) { return !(a < b); });
    table["nle_" + type] = comparison<T>([](auto a, auto b) { return !(a <= b); });
    table["ngt_" + type] = comparison<T>([](auto a, auto b) { return !(a > b); });
    table["nge_" + type] = comparison<T>([](auto a, auto b) { return !(a >= b); });
    table["neq_" + type] = comparison<T>([](auto a, auto b) { return !(a == b); });
    table["nlg_" + type] = comparison<T>([](auto a, auto b) { return !(a < b || a > b); });
    table["o_" + type] = comparison<T>([](auto a, auto b) { return a == a && b == b; });
    table["u_" + type] = comparison<T>([](auto a, auto b) { return a != a || b != b; });
}

// Bits of a class mask: signalling NaN, quiet NaN, -infinity, -normal, -denormal, -0, +0, +denormal, +normal,
// +infinity.
template <int EXPONENT_BITS, int FRACTION_BITS>
static bool is_of_class(u32 bits, u32 classes) {
    const u32 exponent = bits >> FRACTION_BITS & ((1u << EXPONENT_BITS) - 1);
    const u32 fraction = bits & ((1u << FRACTION_BITS) - 1);
    const bool negative = bits >> (EXPONENT_BITS + FRACTION_BITS) & 1;
    const bool full = exponent == (1u << EXPONENT_BITS) - 1;
    if (full && fraction)
        return classes >> (fraction >> (FRACTION_BITS - 1) & 1) & 1;
    const int size = full ? 0 : exponent ? 1 : fraction ? 2 : 3;  // from infinity down to zero
    return classes >> (negative ? 2 + size : 9 - size) & 1;
}

template <int EXPONENT_BITS, int FRACTION_BITS>
static Mask compare_class(const u32* a, const u32* classes) {
    Mask mask = 0;
    for (int lane = 0; lane < LANES; lane++)
        mask |= (Mask)is_of_class<EXPONENT_BITS, FRACTION_BITS>(a[lane], classes[lane]) << lane;
    return mask;
}

static const ComparisonTable& comparisons() {
    static const ComparisonTable table = [] {
        ComparisonTable rows;
        add_integers<u32>(rows, "u32");
        add_integers<i32>(rows, "i32");
        add_integers<u16>(rows, "u16");
        add_integers<i16>(rows, "i16");
        add_floats<float>(rows, "f32");
        add_floats<Half>(rows, "f16");
        rows["class_f32"] = {compare_class<8, 23>, Type::FLOAT};
        rows["class_f16"] = {compare_class<5, 10>, Type::HALF};
        return rows;
    }();
    return table;
}

static void run_compare(Wave& wave, const Instruction& instruction) {
    alignas(64) u32 room[2][LANES];
    const u32* a = read(wave, instruction.source[0], room[0]);
    const u32* b = read(wave, instruction.source[1], room[1]);
    write_mask(wave, instruction.result, instruction.compare(a, b) & exec(wave));
}

bool select_compare(Text& text, Instruction& to) {
    const bool writes_exec = text.starts("v_cmpx_");
    if (!writes_exec && !text.starts("v_cmp_"))
        return false;
    const std::string name = text.name.substr(writes_exec ? 7 : 6);
    const auto found = comparisons().find(name);
    if (found == comparisons().end() || text.dpp)
        return false;
    // v_cmpx names its result in some versions of the text.
    text.expect(writes_exec ? 2 : 3, 3);
    const size_t first = text.operands.size() - 2;
    to.result = writes_exec ? Operand{.kind = Operand::SCALAR, .value = EXEC} : text.operands[0];
    if (to.result.kind != Operand::SCALAR)
        text.refuse("operands");
    const int select = text.bits("op_sel");
    const Type type = found->second.type;
    // The mask of classes is an integer of the same size.
    const bool is_class = name.rfind("class", 0) == 0;
    const Type types[2] = {type, !is_class ? type : type == Type::HALF ? Type::SHORT : Type::WORD};
    for (int k = 0; k < 2; k++) {
        to.source[k] = text.operands[first + k];
        if ((to.source[k].negative || to.source[k].absolute) && types[k] != Type::FLOAT && types[k] != Type::HALF)
            text.refuse("sign");
        as_type(text, to.source[k], types[k], select >> k & 1);
    }
    to.sources = 2;
    text.takes_signs = text.takes_halves = true;
    to.execute = run_compare;
    to.compare = found->second.compare;
    to.stat = VALU;
    return true;
}

}  // namespace rdna3::WAVES
