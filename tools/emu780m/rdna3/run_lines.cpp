// Lines of text run on the waves of one workgroup, for tests: registers and memory in, registers and memory out. A C
// interface; linked in place of `dispatch` (build.sh --interpreter).
#include <algorithm>
#include <cstdio>

#include "schedule.h"

namespace rdna3 {

// As tests/emu780m/machine.py declares it.
struct LinesRun {
    const char* lines;  // each ended by '\n'; a branch counts lines
    u32 waves;
    u32 float_mode;
    u32* vectors;  // [wave][256][lane]
    u32* scalars;  // [wave][128]
    u8* scc;       // [wave]
    u8* lds;
    u64 lds_size;
    u8* memory;
    u64 memory_address;
    u64 memory_size;
    const char* order;  // seed, or null
    Stats stats;
    char error[512];
};

namespace WAVES {

struct OneRange : Memory {
    explicit OneRange(const LinesRun& run) : run(run) {}

    u8* at(u64 address, u32 size, bool) const override {
        const u64 offset = address - run.memory_address;
        return offset <= run.memory_size && size <= run.memory_size - offset ? run.memory + offset : nullptr;
    }
    const u8* rest(u64, size_t&) const override { return nullptr; }

    const LinesRun& run;
};

static std::vector<Line> split(const char* text) {
    std::vector<Line> lines;
    std::string line;
    for (; *text; text++) {
        if (*text != '\n') {
            line += *text;
            continue;
        }
        lines.push_back({line, (u32)(4 * lines.size()), 1});
        line.clear();
    }
    return lines;
}

static void run_lines(LinesRun& run) {
    const Program program = make_program(split(run.lines));
    const OneRange memory(run);
    Group group;
    group.lds.assign(run.lds, run.lds + run.lds_size);
    std::vector<Wave> waves(run.waves);
    for (u32 k = 0; k < run.waves; k++) {
        Wave& wave = waves[k];
        clear(wave);
        memcpy(wave.v, run.vectors + (size_t)k * 256 * LANES, sizeof wave.v);
        memcpy(wave.s, run.scalars + (size_t)k * 128, sizeof wave.s);
        wave.scc = run.scc[k];
        wave.group = &group;
        wave.stats = &run.stats;
        wave.memory = &memory;
    }
    const FloatMode mode(run.float_mode);
    Order order(run.order);
    run_group(waves, program, order);
    for (u32 k = 0; k < run.waves; k++) {
        memcpy(run.vectors + (size_t)k * 256 * LANES, waves[k].v, sizeof waves[k].v);
        memcpy(run.scalars + (size_t)k * 128, waves[k].s, sizeof waves[k].s);
        run.scc[k] = waves[k].scc;
    }
    std::copy(group.lds.begin(), group.lds.end(), run.lds);
}

}  // namespace WAVES

// 0, or 1 with a line in `error`.
#if WAVE == 64
extern "C" int rdna3_run_lines_64(LinesRun* run) {
#else
extern "C" int rdna3_run_lines_32(LinesRun* run) {
#endif
    try {
        WAVES::run_lines(*run);
        return 0;
    } catch (std::exception& error) {
        snprintf(run->error, sizeof run->error, "%s", error.what());
        return 1;
    }
}

}  // namespace rdna3
