// A dispatch: its workgroups one after another, each wave's registers set as the hardware does.
#include <algorithm>
#include <cstdlib>

#include "schedule.h"

namespace rdna3 {
namespace wave64 {
void run_dispatch(const Dispatch& dispatch, const Memory& memory, Stats& stats);
}
namespace WAVES {

constexpr int LDS_UNIT = 512;    // bytes
constexpr u8 LDS_POISON = 0xa5;  // in each byte that nothing was written to

// COMPUTE_PGM_RSRC2.
struct Resources {
    explicit Resources(u32 bits)
        : user((bits >> 1) & 31),
          group{(bits >> 7 & 1) != 0, (bits >> 8 & 1) != 0, (bits >> 9 & 1) != 0},
          group_size(bits >> 10 & 1),
          lds((bits >> 15 & 0x1ff) * LDS_UNIT) {}

    u32 user;         // user SGPRs; behind them follow, where asked for:
    bool group[3];    // the workgroup's number
    bool group_size;  // waves of the group, and which of them this is
    u32 lds;          // bytes
};

static void set_scalars(Wave& wave, const Dispatch& dispatch, const u32* group, u32 number, u32 waves) {
    const Resources resources(dispatch.rsrc2);
    u32 next = resources.user;
    std::copy_n(dispatch.user, next, wave.s);
    for (int k = 0; k < 3; k++)
        if (resources.group[k])
            wave.s[next++] = group[k];
    // The wave's number stands there twice: from bit 6 as the count for ordered appends, which starts at 0 here and which Mesa
    // takes for the invocation's index in waves of 64, and from bit 20 (RDNA 2 and later) as what Mesa takes elsewhere.
    if (resources.group_size)
        wave.s[next++] = waves | number << 6 | number << 20;
}

// The invocation's place, 10 bits for each dimension, in the first vector register.
static void set_lanes(Wave& wave, const Dispatch& dispatch, u32 number) {
    const u32* local = dispatch.local;
    const u32 invocations = local[0] * local[1] * local[2];
    Mask on = 0;
    for (int lane = 0; lane < LANES; lane++) {
        const u32 invocation = number * LANES + lane;
        if (invocation < invocations)
            on |= (Mask)1 << lane;
        const u32 x = invocation % local[0];
        const u32 y = invocation / local[0] % local[1];
        const u32 z = invocation / (local[0] * local[1]);
        wave.v[0].lane[lane] = x | y << 10 | z << 20;
    }
    set_exec(wave, on);
}

void run_dispatch(const Dispatch& dispatch, const Memory& memory, Stats& stats) {
    size_t most = 0;
    const u8* code = memory.rest(dispatch.code, most);
    if (!code)
        fail("no code");
    const Program& program = program_of(code, most);
    const u32 invocations = dispatch.local[0] * dispatch.local[1] * dispatch.local[2];
    std::vector<Wave> waves((invocations + LANES - 1) / LANES);
    Group shared;
    Order order(getenv("EMU_ORDER"));
    const FloatMode mode(dispatch.rsrc1 >> 12 & 255);
    const u32 groups = dispatch.groups[0] * dispatch.groups[1];
    for (u32 number = 0; number < groups * dispatch.groups[2]; number++) {
        const u32 group[3] = {number % dispatch.groups[0], number / dispatch.groups[0] % dispatch.groups[1],
                              number / groups};
        shared.lds.assign(Resources(dispatch.rsrc2).lds, LDS_POISON);
        for (u32 k = 0; k < waves.size(); k++) {
            Wave& wave = waves[k];
            clear(wave);
            wave.group = &shared;
            wave.stats = &stats;
            wave.memory = &memory;
            set_scalars(wave, dispatch, group, k, (u32)waves.size());
            set_lanes(wave, dispatch, k);
        }
        stats.groups++;
        stats.waves += waves.size();
        try {
            run_group(waves, program, order);
        } catch (std::exception& error) {
            fail(std::string(error.what()) + ", group " + std::to_string(group[0]) + " " +
                 std::to_string(group[1]) + " " + std::to_string(group[2]));
        }
    }
}

}  // namespace WAVES

#if WAVE == 32
void run(const Dispatch& dispatch, const Memory& memory, Stats& stats) {
    if (dispatch.wave32)
        wave32::run_dispatch(dispatch, memory, stats);
    else
        wave64::run_dispatch(dispatch, memory, stats);
}
#endif

}  // namespace rdna3
