// Scalar ALU on 64 bits, and the instructions that keep EXEC and change it.
#include <map>

#include "classes.h"

namespace rdna3::WAVES {

// Which of result, first and second source have 64 bits; the others have 32.
enum Wide { RESULT = 1, FIRST = 2, SECOND = 4, NO_RESULT = 8 };

struct ScalarRow64 {
    ScalarFunction64 function;
    int sources;
    int wide;
};

using ScalarTable64 = std::map<std::string, ScalarRow64>;

static u64 nonzero(u64 value, bool& scc) {
    scc = value != 0;
    return value;
}

static void add_bits(ScalarTable64& table) {
    const int all = RESULT | FIRST | SECOND;
    table["s_mov_b64"] = {[](u64 a, u64, bool&) { return a; }, 1, RESULT | FIRST};
    table["s_cselect_b64"] = {[](u64 a, u64 b, bool& scc) { return scc ? a : b; }, 2, all};
    table["s_not_b64"] = {[](u64 a, u64, bool& scc) { return nonzero(~a, scc); }, 1, RESULT | FIRST};
    table["s_and_b64"] = {[](u64 a, u64 b, bool& scc) { return nonzero(a & b, scc); }, 2, all};
    table["s_or_b64"] = {[](u64 a, u64 b, bool& scc) { return nonzero(a | b, scc); }, 2, all};
    table["s_xor_b64"] = {[](u64 a, u64 b, bool& scc) { return nonzero(a ^ b, scc); }, 2, all};
    table["s_and_not1_b64"] = {[](u64 a, u64 b, bool& scc) { return nonzero(a & ~b, scc); }, 2, all};
    table["s_or_not1_b64"] = {[](u64 a, u64 b, bool& scc) { return nonzero(a | ~b, scc); }, 2, all};
    table["s_xnor_b64"] = {[](u64 a, u64 b, bool& scc) { return nonzero(~(a ^ b), scc); }, 2, all};
    table["s_nor_b64"] = {[](u64 a, u64 b, bool& scc) { return nonzero(~(a | b), scc); }, 2, all};
    table["s_nand_b64"] = {[](u64 a, u64 b, bool& scc) { return nonzero(~(a & b), scc); }, 2, all};
    table["s_lshl_b64"] = {[](u64 a, u64 b, bool& scc) { return nonzero(a << (b & 63), scc); }, 2, RESULT | FIRST};
    table["s_lshr_b64"] = {[](u64 a, u64 b, bool& scc) { return nonzero(a >> (b & 63), scc); }, 2, RESULT | FIRST};
    table["s_bfm_b64"] = {[](u64 a, u64 b, bool&) { return (((u64)1 << (a & 63)) - 1) << (b & 63); }, 2, RESULT};
    table["s_bcnt1_i32_b64"] = {
        [](u64 a, u64, bool& scc) { return nonzero((u64)__builtin_popcountll(a), scc); }, 1, FIRST};
    table["s_ctz_i32_b64"] = {[](u64 a, u64, bool&) { return a ? (u64)__builtin_ctzll(a) : ~(u64)0; }, 1, FIRST};
    table["s_cmp_eq_u64"] = {
        [](u64 a, u64 b, bool& scc) { return (u64)(scc = a == b); }, 2, FIRST | SECOND | NO_RESULT};
    table["s_cmp_lg_u64"] = {
        [](u64 a, u64 b, bool& scc) { return (u64)(scc = a != b); }, 2, FIRST | SECOND | NO_RESULT};
}

template <int WIDE>
static void run_scalar64(Wave& wave, const Instruction& instruction) {
    const auto source = [&](int k, bool wide) -> u64 {
        if (k >= instruction.sources)
            return 0;
        const Operand& operand = instruction.source[k];
        return wide ? read_scalar64(wave, operand) : read_scalar(wave, operand);
    };
    const u64 a = source(0, WIDE & FIRST);
    const u64 b = source(1, WIDE & SECOND);
    const u64 value = instruction.scalar64(a, b, wave.scc);
    if (WIDE & NO_RESULT)
        return;
    if (WIDE & RESULT)
        write_scalar64(wave, instruction.result, value);
    else
        write_scalar(wave, instruction.result, (u32)value);
}

// The result gets EXEC as it was, and EXEC the operation's value.
static void run_saveexec32(Wave& wave, const Instruction& instruction) {
    const u32 old = wave.s[EXEC];
    const u64 value = instruction.scalar64(read_scalar(wave, instruction.source[0]), old, wave.scc);
    write_scalar(wave, instruction.result, old);
    wave.s[EXEC] = (u32)value;
    wave.scc = (u32)value != 0;
}

static void run_saveexec64(Wave& wave, const Instruction& instruction) {
    const u64 old = wave.s[EXEC] | (u64)wave.s[EXEC + 1] << 32;
    const u64 value = instruction.scalar64(read_scalar64(wave, instruction.source[0]), old, wave.scc);
    write_scalar64(wave, instruction.result, old);
    wave.s[EXEC] = (u32)value;
    wave.s[EXEC + 1] = (u32)(value >> 32);
    wave.scc = value != 0;
}

// Both the result and EXEC get the value.
static void run_wrexec32(Wave& wave, const Instruction& instruction) {
    const u32 value = read_scalar(wave, instruction.source[0]) & ~wave.s[EXEC];
    write_scalar(wave, instruction.result, value);
    wave.s[EXEC] = value;
    wave.scc = value != 0;
}

static bool select_exec(Text& text, Instruction& to) {
    static const std::map<std::string, ScalarFunction64> operations = {
        {"s_and_saveexec", [](u64 a, u64 exec, bool&) { return a & exec; }},
        {"s_or_saveexec", [](u64 a, u64 exec, bool&) { return a | exec; }},
        {"s_xor_saveexec", [](u64 a, u64 exec, bool&) { return a ^ exec; }},
        {"s_and_not1_saveexec", [](u64 a, u64 exec, bool&) { return a & ~exec; }},
        {"s_and_not0_saveexec", [](u64 a, u64 exec, bool&) { return ~a & exec; }},
        {"s_or_not1_saveexec", [](u64 a, u64 exec, bool&) { return a | ~exec; }},
    };
    const size_t last = text.name.rfind('_');
    const std::string size = last == std::string::npos ? "" : text.name.substr(last);
    const auto found = operations.find(text.name.substr(0, last));
    if (found != operations.end() && (size == "_b32" || size == "_b64")) {
        to.scalar64 = found->second;
        to.execute = size == "_b32" ? run_saveexec32 : run_saveexec64;
        return true;
    }
    if (text.name == "s_and_not1_wrexec_b32")
        to.execute = run_wrexec32;
    return to.execute != nullptr;
}

template <int... WIDES>
static void choose_execute(int wide, Instruction& to) {
    ((wide == WIDES ? (void)(to.execute = run_scalar64<WIDES>) : (void)0), ...);
}

bool select_scalar64(Text& text, Instruction& to) {
    static const ScalarTable64 table = [] {
        ScalarTable64 rows;
        add_bits(rows);
        return rows;
    }();
    int operands = 2;
    const auto found = table.find(text.name);
    if (found != table.end()) {
        const ScalarRow64& row = found->second;
        operands = row.sources + (row.wide & NO_RESULT ? 0 : 1);
        to.scalar64 = row.function;
        choose_execute<RESULT, FIRST, RESULT | FIRST, RESULT | FIRST | SECOND, FIRST | SECOND | NO_RESULT>(
            row.wide, to);
    } else if (!select_exec(text, to)) {
        return false;
    }
    text.expect(operands);
    for (const Operand& operand : text.operands)
        if (operand.is_vector())
            text.refuse("operands");
    const bool has_result = found == table.end() || !(found->second.wide & NO_RESULT);
    for (size_t k = has_result ? 1 : 0; k < text.operands.size(); k++)
        to.source[to.sources++] = text.operands[k];
    to.result = text.operands[0];
    if (has_result && to.result.kind != Operand::SCALAR)
        text.refuse("operands");
    to.stat = SALU;
    return true;
}

}  // namespace rdna3::WAVES
