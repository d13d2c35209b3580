#include "dispatch.h"

#include "../rdna3.h"
#include "../statistics.h"
#include "clock.h"
#include "log.h"
#include "memory.h"

#include <algorithm>
#include <chrono>
#include <exception>

namespace device {

uint64_t ticks = 1000000;

namespace {

// Registers, in bytes.
constexpr uint32_t SH_BASE = 0xb000;
constexpr uint32_t COMPUTE_START_X = 0xb810;
constexpr uint32_t COMPUTE_NUM_THREAD_X = 0xb81c;
constexpr uint32_t COMPUTE_PGM_LO = 0xb830;
constexpr uint32_t COMPUTE_PGM_HI = 0xb834;
constexpr uint32_t COMPUTE_PGM_RSRC1 = 0xb848;
constexpr uint32_t COMPUTE_PGM_RSRC2 = 0xb84c;
constexpr uint32_t COMPUTE_USER_DATA_0 = 0xb900;

// Bits of the initiator.
constexpr uint32_t START_AT_ZERO = 1 << 2;
constexpr uint32_t COUNTED_IN_THREADS = 1 << 5;
constexpr uint32_t WAVE32 = 1 << 15;

constexpr int USER_WORDS = 16;
constexpr double CYCLES_PER_TICK = 27;  // 2.7 GHz against 100 MHz
int number = 0;                         // of dispatches so far

uint64_t code_address(const ShaderRegisters& registers) {
    const uint64_t high = registers.at(COMPUTE_PGM_HI);
    const uint64_t address = (high << 32 | registers.at(COMPUTE_PGM_LO)) << 8;
    return static_cast<uint64_t>(static_cast<int64_t>(address << 16) >> 16);  // 48 bits, sign-extended
}

rdna3::Dispatch described(const ShaderRegisters& registers, const Grid& grid) {
    rdna3::Dispatch d{};
    d.code = code_address(registers);
    d.rsrc1 = registers.at(COMPUTE_PGM_RSRC1);
    d.rsrc2 = registers.at(COMPUTE_PGM_RSRC2);
    d.wave32 = grid.initiator & WAVE32;
    for (int k = 0; k < USER_WORDS; k++)
        d.user[k] = registers.at(COMPUTE_USER_DATA_0 + 4 * k);
    for (int k = 0; k < 3; k++) {
        const uint32_t threads = registers.at(COMPUTE_NUM_THREAD_X + 4 * k);
        d.local[k] = threads & 0xffff;
        d.groups[k] = grid.groups[k];
        if (!(grid.initiator & START_AT_ZERO) && registers.at(COMPUTE_START_X + 4 * k))
            stop("dispatch %d: starts at another group than the first, which is not known here", number);
        if (!(grid.initiator & COUNTED_IN_THREADS))
            continue;
        if (grid.groups[k] % d.local[k])
            stop("dispatch %d: ends within a group, which is not known here", number);
        d.groups[k] /= d.local[k];
    }
    return d;
}

void execute(const rdna3::Dispatch& d, rdna3::Stats& stats) {
    try {
        rdna3::run(d, gpu_memory(), stats);
    } catch (const std::exception& error) {
        stop("dispatch %d (%u x %u x %u of %u x %u x %u, waves of %d): %s", number, d.groups[0], d.groups[1],
             d.groups[2], d.local[0], d.local[1], d.local[2], d.wave32 ? 32 : 64, error.what());
    }
}

}  // namespace

void ShaderRegisters::set(uint32_t index, uint32_t value) {
    if (index >= COUNT)
        stop("shader register %#x: there is none", SH_BASE + 4 * index);
    values_[index] = value;
}

uint32_t ShaderRegisters::at(uint32_t address) const { return values_[(address - SH_BASE) / 4]; }

void run_dispatch(const ShaderRegisters& registers, const Grid& grid) {
    const rdna3::Dispatch d = described(registers, grid);
    rdna3::Stats stats;
    statistics::begin();
    const auto start = std::chrono::steady_clock::now();
    execute(d, stats);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const statistics::Bounds bounds = statistics::bounds(d, stats);
    ticks += static_cast<uint64_t>(std::max({bounds.issue, bounds.lds, bounds.lines}) / CYCLES_PER_TICK) + 1;
    try {
        statistics::end(d, gpu_memory(), stats, seconds);
    } catch (const std::exception& error) {
        stop("%s", error.what());
    }
    number++;
}

}  // namespace device
