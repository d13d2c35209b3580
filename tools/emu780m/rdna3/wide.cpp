// Vector integers of more than 32 bits: sums with carries, a product with a sum of 64 bits, shifts.
#include <map>

#include "classes.h"

namespace rdna3::WAVES {

enum Sum { ADD, SUBTRACT, SUBTRACT_REVERSED };

// In the text: result, carry out, a, b and perhaps carry in. What is borrowed is a carry too.
template <Sum SUM>
static void run_carry(Wave& wave, const Instruction& instruction) {
    alignas(64) u32 room[2][LANES];
    alignas(64) u32 values[LANES];
    const u32* a = read(wave, instruction.source[1], room[0]);
    const u32* b = read(wave, instruction.source[2], room[1]);
    const Mask in = instruction.sources > 3 ? read_mask(wave, instruction.source[3]) : 0;
    Mask out = 0;
    for (int lane = 0; lane < LANES; lane++) {
        const u64 carry = is_on(in, lane);
        u64 sum = 0;
        if (SUM == ADD)
            sum = (u64)a[lane] + b[lane] + carry;
        else if (SUM == SUBTRACT)
            sum = (u64)a[lane] - b[lane] - carry;
        else
            sum = (u64)b[lane] - a[lane] - carry;
        values[lane] = (u32)sum;
        out |= (Mask)(sum >> 32 & 1) << lane;
    }
    const Mask on = exec(wave);
    write(wave, instruction.result, values);
    write_mask(wave, instruction.source[0], out & on);
}

// Two registers, carry out, a, b, two registers: a * b + c.
static void run_mad64(Wave& wave, const Instruction& instruction) {
    alignas(64) u32 room[2][LANES];
    alignas(64) u32 low[LANES];
    alignas(64) u32 high[LANES];
    const u32* a = read(wave, instruction.source[1], room[0]);
    const u32* b = read(wave, instruction.source[2], room[1]);
    Mask out = 0;
    for (int lane = 0; lane < LANES; lane++) {
        const u64 product = (u64)a[lane] * b[lane];
        const u64 sum = product + read_lane64(wave, instruction.source[3], lane);
        out |= (Mask)(sum < product) << lane;
        low[lane] = (u32)sum;
        high[lane] = (u32)(sum >> 32);
    }
    const Mask on = exec(wave);
    write64(wave, instruction.result, low, high);
    write_mask(wave, instruction.source[0], out & on);
}

enum Shift { LEFT, RIGHT, RIGHT_SIGNED };

template <Shift SHIFT>
static void run_shift64(Wave& wave, const Instruction& instruction) {
    alignas(64) u32 room[LANES];
    alignas(64) u32 low[LANES];
    alignas(64) u32 high[LANES];
    const u32* amounts = read(wave, instruction.source[0], room);
    for (int lane = 0; lane < LANES; lane++) {
        const u64 from = read_lane64(wave, instruction.source[1], lane);
        const u32 amount = amounts[lane] & 63;
        u64 value = 0;
        if (SHIFT == LEFT)
            value = from << amount;
        else if (SHIFT == RIGHT)
            value = from >> amount;
        else
            value = (u64)((i64)from >> amount);
        low[lane] = (u32)value;
        high[lane] = (u32)(value >> 32);
    }
    write64(wave, instruction.result, low, high);
}

bool select_wide(Text& text, Instruction& to) {
    struct Row {
        void (*execute)(Wave&, const Instruction&);
        int operands;
        int issue = 1;
    };
    static const std::map<std::string, Row> rows = {
        {"v_add_co_u32", {run_carry<ADD>, 4}},
        {"v_add_co_ci_u32", {run_carry<ADD>, 5}},
        {"v_sub_co_u32", {run_carry<SUBTRACT>, 4}},
        {"v_sub_co_ci_u32", {run_carry<SUBTRACT>, 5}},
        {"v_subrev_co_u32", {run_carry<SUBTRACT_REVERSED>, 4}},
        {"v_subrev_co_ci_u32", {run_carry<SUBTRACT_REVERSED>, 5}},
        {"v_mad_u64_u32", {run_mad64, 5, 4}},
        {"v_lshlrev_b64", {run_shift64<LEFT>, 3}},
        {"v_lshrrev_b64", {run_shift64<RIGHT>, 3}},
        {"v_ashrrev_i64", {run_shift64<RIGHT_SIGNED>, 3}},
    };
    const auto found = rows.find(text.name);
    if (found == rows.end() || text.dpp)
        return false;
    text.expect(found->second.operands);
    take_operands(text, to);
    if (!to.result.is_vector() || (to.sources > 2 && to.source[0].kind != Operand::SCALAR))
        text.refuse("operands");
    to.execute = found->second.execute;
    to.issue = found->second.issue;
    to.stat = VALU;
    return true;
}

}  // namespace rdna3::WAVES
