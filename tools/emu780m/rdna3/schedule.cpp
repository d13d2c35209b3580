// The waves of a workgroup: set up, and run in turn from barrier to barrier.
#include "schedule.h"

#include <xmmintrin.h>

#include <algorithm>
#include <cstdlib>

#include "halves.h"

namespace rdna3::WAVES {

constexpr u32 NO_DENORMALS = 0x8040;  // MXCSR: neither read nor written

FloatMode::FloatMode(u32 mode) : before(_mm_getcsr()) {
    const u32 rounding = mode & 3;
    const u32 denormals = mode >> 4 & 3;
    if (rounding != NEAREST)
        fail("floats rounded otherwise than to nearest");
    if (denormals == 1 || denormals == 2)
        fail("denormal floats allowed only as operands or only as results");
    if ((mode >> 6 & 3) != 3)
        fail("denormal halves not allowed");
    half_rounding = (Rounding)(mode >> 2 & 3);
    _mm_setcsr(denormals ? before & ~NO_DENORMALS : before | NO_DENORMALS);
}

FloatMode::~FloatMode() {
    _mm_setcsr(before);
}

void Order::shuffle(std::vector<u32>& turn) {
    if (!random)
        return;
    for (size_t k = turn.size(); k > 1; k--) {
        state = state * 1664525 + 1013904223;
        std::swap(turn[k - 1], turn[(state >> 8) % k]);
    }
}

void clear(Wave& wave) {
    for (Register& vector : wave.v)
        std::fill_n(vector.lane, LANES, POISON);
    std::fill_n(wave.s, 128, POISON);
    wave.s[NUL] = 0;
    wave.s[EXEC] = wave.s[EXEC + 1] = 0;
    wave.scratch.clear();
    wave.scc = wave.done = wave.at_barrier = false;
    wave.next = 0;
}

// Up to a barrier or the end.
static void run_wave(Wave& wave, const Program& program) {
    wave.at_barrier = false;
    const Instruction* instruction = nullptr;
    try {
        while (!wave.done && !wave.at_barrier) {
            if (wave.next >= (int)program.size())
                fail("ran past the code's end");
            instruction = &program[wave.next++];
            wave.stats->count[instruction->stat]++;
            wave.stats->issue[instruction->stat] += instruction->issue;
            instruction->execute(wave, *instruction);
        }
    } catch (std::exception& error) {
        if (!instruction)
            throw;
        const std::string where = " (instruction " + std::to_string(instruction - program.data()) + ")";
        fail(error.what() + std::string(" in: ") + instruction->text + where);
    }
}

void run_group(std::vector<Wave>& waves, const Program& program, Order& order) {
    std::vector<u32> turn(waves.size());
    size_t left = waves.size();
    while (left) {
        for (u32 k = 0; k < turn.size(); k++)
            turn[k] = k;
        order.shuffle(turn);
        for (const u32 k : turn) {
            if (waves[k].done)
                continue;
            run_wave(waves[k], program);
            left -= waves[k].done;
        }
    }
}

}  // namespace rdna3::WAVES
