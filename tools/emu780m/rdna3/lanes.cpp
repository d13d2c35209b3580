// Vector instructions between lanes: one lane to or from a scalar register, permutations within 16 lanes and of
// halves of a wave, a swap.
#include <algorithm>

#include "classes.h"

namespace rdna3::WAVES {

static void run_readlane(Wave& wave, const Instruction& instruction) {
    const u32 lane = read_scalar(wave, instruction.source[1]) & (LANES - 1);
    write_scalar(wave, instruction.result, wave.v[instruction.source[0].value].lane[lane]);
}

static void run_readfirstlane(Wave& wave, const Instruction& instruction) {
    const Mask on = exec(wave);
    const int lane = on ? __builtin_ctzll(on) : 0;
    write_scalar(wave, instruction.result, wave.v[instruction.source[0].value].lane[lane]);
}

// Whatever EXEC says.
static void run_writelane(Wave& wave, const Instruction& instruction) {
    const u32 lane = read_scalar(wave, instruction.source[1]) & (LANES - 1);
    wave.v[instruction.result.value].lane[lane] = read_scalar(wave, instruction.source[0]);
}

// Four bits for each of 16 lanes say which lane of the row, or (OTHER_ROW) of its neighbour, is read. op_sel's first
// bit: lanes that are off may be read; its second: they count as 0, else the reading lane keeps its value.
template <bool OTHER_ROW>
static void run_permlane(Wave& wave, const Instruction& instruction) {
    alignas(64) u32 values[LANES];
    const u32 low = read_scalar(wave, instruction.source[1]);
    const u32 high = read_scalar(wave, instruction.source[2]);
    const u64 select = low | (u64)high << 32;
    const u32* from = wave.v[instruction.source[0].value].lane;
    const Mask on = exec(wave);
    Mask written = on;
    for (int lane = 0; lane < LANES; lane++) {
        const int row = (lane & ~15) ^ (OTHER_ROW ? 16 : 0);
        const int source = row + (int)(select >> 4 * (lane & 15) & 15);
        const bool valid = instruction.dpp.fetch_inactive || is_on(on, source);
        values[lane] = valid ? from[source] : 0;
        if (!valid && !instruction.dpp.bound_ctrl)
            written &= ~((Mask)1 << lane);
    }
    write_lanes(wave.v[instruction.result.value], instruction.result, values, written);
}

static void run_swap(Wave& wave, const Instruction& instruction) {
    u32* a = wave.v[instruction.result.value].lane;
    u32* b = wave.v[instruction.source[0].value].lane;
    const Mask on = exec(wave);
    for (int lane = 0; lane < LANES; lane++)
        if (is_on(on, lane))
            std::swap(a[lane], b[lane]);
}

// Each lane reads the one 32 from it, whether that is on or not. Does nothing in waves of 32.
static void run_permlane64(Wave& wave, const Instruction& instruction) {
    if (LANES == 32)
        return;
    alignas(64) u32 values[LANES];
    for (int lane = 0; lane < LANES; lane++)
        values[lane] = wave.v[instruction.source[0].value].lane[lane ^ 32];
    write_lanes(wave.v[instruction.result.value], instruction.result, values, exec(wave));
}

static bool select_permlane(Text& text, Instruction& to) {
    const bool other_row = text.name == "v_permlanex16_b32";
    if (!other_row && text.name != "v_permlane16_b32")
        return false;
    text.expect(4);
    take_operands(text, to);
    const int select = text.bits("op_sel");
    if (!to.result.is_vector() || !to.source[0].is_vector() || select >> 2)
        text.refuse("operands");
    to.dpp.fetch_inactive = select & 1;
    to.dpp.bound_ctrl = select >> 1 & 1;
    to.execute = other_row ? run_permlane<true> : run_permlane<false>;
    return true;
}

bool select_lanes(Text& text, Instruction& to) {
    if (text.dpp)
        return false;
    to.stat = VALU;
    if (select_permlane(text, to))
        return true;
    const bool readlane = text.name == "v_readlane_b32";
    const bool readfirst = text.name == "v_readfirstlane_b32";
    const bool writelane = text.name == "v_writelane_b32";
    const bool swap = text.name == "v_swap_b32";
    const bool permlane64 = text.name == "v_permlane64_b32";
    if (!readlane && !readfirst && !writelane && !swap && !permlane64)
        return false;
    text.expect(readlane || writelane ? 3 : 2);
    take_operands(text, to);
    if (to.result.is_vector() != (writelane || swap || permlane64) || to.source[0].is_vector() == writelane)
        text.refuse("operands");
    to.execute = readlane     ? run_readlane
                 : readfirst  ? run_readfirstlane
                 : writelane  ? run_writelane
                 : permlane64 ? run_permlane64
                              : run_swap;
    return true;
}

}  // namespace rdna3::WAVES
