// A wave's registers, an instruction ready to run, and how operands are read and results written.
//
// Compiled for waves of 32 and of 64 lanes (WAVE), each in its own namespace (WAVES): a loop over all lanes has a
// constant length.
#pragma once
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "../rdna3.h"
#include "text.h"

#if WAVE == 64
#define WAVES wave64
#else
#define WAVES wave32
#endif

namespace rdna3::WAVES {

constexpr int LANES = WAVE;
using Mask = std::conditional_t<WAVE == 64, u64, u32>;  // a bit for each lane
constexpr Mask ALL = ~(Mask)0;

struct alignas(64) Register {
    u32 lane[LANES];
};

// Registers and memory that nothing was written to hold this: a NaN, and no address.
constexpr u32 POISON = 0x7fa5a5a5;

struct Group {
    std::vector<u8> lds;
};

struct Wave {
    Register v[256];
    u32 s[128];
    bool scc = false;
    int next = 0;  // the instruction that comes next
    bool done = false;
    bool at_barrier = false;
    Group* group = nullptr;
    Stats* stats = nullptr;
    const Memory* memory = nullptr;
    std::vector<u32> scratch;  // [word][lane], made at first use
};

// A vector operation on all lanes at once, whatever EXEC says; results go through `write`.
using LaneFunction = void (*)(const u32* a, const u32* b, const u32* c, u32* result);
using CompareFunction = Mask (*)(const u32* a, const u32* b);

// Scalar operations; they may set SCC.
using ScalarFunction = u32 (*)(u32 a, u32 b, bool& scc);
using ScalarFunction3 = u32 (*)(u32 a, u32 b, u32 c);
using ScalarFunction64 = u64 (*)(u64 a, u64 b, bool& scc);

struct Dpp {
    enum Pattern : i8 { NONE, QUAD_PERM, ROW_SHL, ROW_SHR, ROW_ROR, ROW_MIRROR, HALF_MIRROR, ROW_SHARE, ROW_XMASK };
    Pattern pattern = NONE;
    int amount = 0;
    u8 quad[4] = {};
    u8 row_mask = 15;
    u8 bank_mask = 15;
    bool bound_ctrl = false;      // lanes that read outside the row get 0; without, they keep their value
    bool fetch_inactive = false;  // lanes that EXEC leaves out may be read
};

struct Instruction {
    void (*execute)(Wave&, const Instruction&) = nullptr;
    std::string text;
    Stat stat = OTHER;
    int issue = 1;   // cycles
    int words = 0;   // of code
    bool (*condition)(const Wave&) = nullptr;  // of a branch
    int target = 0;  // of a branch: words after it in the text; once decoded, an instruction's number

    Operand result;
    Operand source[4];
    int sources = 0;

    ScalarFunction scalar = nullptr;
    ScalarFunction3 scalar3 = nullptr;
    ScalarFunction64 scalar64 = nullptr;

    // Vector arithmetic.
    LaneFunction lanes = nullptr;
    CompareFunction compare = nullptr;
    bool mask_operand = false;  // source 2 is a lane mask
    bool clamp = false;
    float multiply = 1;      // of the result, before the clamp
    bool half_result = false;
    u8 select_low = 0;       // op_sel, op_sel_hi: which half of each source, for the result's low and high half
    u8 select_high = 7;
    u8 negate_low = 0;       // neg_lo, neg_hi
    u8 negate_high = 0;
    Dpp dpp;
    std::shared_ptr<const Instruction> second;  // of a pair

    // Memory.
    int offset = 0;         // bytes
    int second_offset = 0;  // of the LDS instructions with two addresses
    int width = 1;          // words
    int bytes = 4;          // of an element: 1 and 2 go with width 1
    bool is_signed = false;
    bool keep_low = false;   // a half is loaded into, or stored from, the register's high half
    bool keep_high = false;  // a half is loaded into the register's low half
    bool lane_offset = false;  // buffers: offen
    bool lane_index = false;   // idxen
};

inline Mask exec(const Wave& wave) {
    if constexpr (LANES == 64)
        return (Mask)(wave.s[EXEC] | (u64)wave.s[EXEC + 1] << 32);
    return (Mask)wave.s[EXEC];
}

inline void set_exec(Wave& wave, Mask mask) {
    wave.s[EXEC] = (u32)mask;
    if constexpr (LANES == 64)
        wave.s[EXEC + 1] = (u32)(mask >> (LANES / 2));
}

inline bool is_on(Mask mask, int lane) {
    return mask >> lane & 1;
}

inline u32 read_scalar(const Wave& wave, const Operand& operand) {
    if (operand.kind == Operand::SCALAR)
        return operand.value == NUL ? 0 : wave.s[operand.value];
    if (operand.kind == Operand::CONSTANT)
        return operand.value;
    if (operand.kind == Operand::CARRY)
        return wave.scc;
    fail("scalar operand");
}

inline u64 read_scalar64(const Wave& wave, const Operand& operand) {
    if (operand.kind == Operand::SCALAR)
        return operand.value == NUL ? 0 : wave.s[operand.value] | (u64)wave.s[operand.value + 1] << 32;
    if (operand.kind == Operand::CONSTANT)
        return operand.wide;
    fail("scalar operand of 64 bits");
}

inline void write_scalar(Wave& wave, const Operand& operand, u32 value) {
    if (operand.kind != Operand::SCALAR)
        fail("scalar result");
    if (operand.value != NUL)
        wave.s[operand.value] = value;
}

inline void write_scalar64(Wave& wave, const Operand& operand, u64 value) {
    write_scalar(wave, operand, (u32)value);
    if (operand.value != NUL)
        wave.s[operand.value + 1] = (u32)(value >> 32);
}

inline Mask read_mask(const Wave& wave, const Operand& operand) {
    if constexpr (LANES == 64)
        return (Mask)read_scalar64(wave, operand);
    return (Mask)read_scalar(wave, operand);
}

inline void write_mask(Wave& wave, const Operand& operand, Mask mask) {
    if constexpr (LANES == 64)
        write_scalar64(wave, operand, mask);
    else
        write_scalar(wave, operand, (u32)mask);
}

// All lanes of an operand: halves shifted down, signs changed. The result may lie in the register itself.
inline const u32* read(const Wave& wave, const Operand& operand, u32* room) {
    const u32* from = room;
    if (operand.kind == Operand::VECTOR) {
        from = wave.v[operand.value].lane;
        if (!operand.negative && !operand.absolute && !operand.half)
            return from;
    } else {
        const u32 value = read_scalar(wave, operand);
        for (int lane = 0; lane < LANES; lane++)
            room[lane] = value;
    }
    const u32 sign = operand.half ? 0x8000u : 0x80000000u;
    const u32 mask = operand.half ? 0xffffu : ~0u;
    const u32 shift = operand.half && operand.high ? 16 : 0;
    const u32 keep = operand.absolute ? ~sign : ~0u;
    const u32 flip = operand.negative ? sign : 0;
    for (int lane = 0; lane < LANES; lane++)
        room[lane] = (from[lane] >> shift & mask & keep) ^ flip;
    return room;
}

// One lane of an operand of 64 bits.
inline u64 read_lane64(const Wave& wave, const Operand& operand, int lane) {
    if (operand.kind == Operand::VECTOR)
        return wave.v[operand.value].lane[lane] | (u64)wave.v[operand.value + 1].lane[lane] << 32;
    return read_scalar64(wave, operand);
}

inline void write_lanes(Register& to, const Operand& operand, const u32* values, Mask mask) {
    if (operand.half) {
        const u32 keep = operand.high ? 0xffffu : 0xffff0000u;
        const u32 shift = operand.high ? 16 : 0;
        for (int lane = 0; lane < LANES; lane++)
            if (is_on(mask, lane))
                to.lane[lane] = (to.lane[lane] & keep) | (values[lane] & 0xffff) << shift;
        return;
    }
    if (mask == ALL) {
        memcpy(to.lane, values, sizeof to.lane);
        return;
    }
    for (int lane = 0; lane < LANES; lane++)
        to.lane[lane] = is_on(mask, lane) ? values[lane] : to.lane[lane];
}

// Writes the lanes that EXEC names.
inline void write(Wave& wave, const Operand& operand, const u32* values) {
    write_lanes(wave.v[operand.value], operand, values, exec(wave));
}

inline void write64(Wave& wave, const Operand& operand, const u32* low, const u32* high) {
    write_lanes(wave.v[operand.value], operand, low, exec(wave));
    write_lanes(wave.v[operand.value + 1], operand, high, exec(wave));
}

}  // namespace rdna3::WAVES
