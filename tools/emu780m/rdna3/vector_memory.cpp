// Buffers (by descriptor, with its range check) and global addresses: loads, stores, an atomic sum.
#include <map>

#include "classes.h"
#include "memory.h"

namespace rdna3::WAVES {

constexpr int LINE = 128;  // bytes

static void count_lines(Wave& wave, const u64* addresses, Mask on, int bytes) {
    u64 seen[2 * LANES];
    int count = 0;
    for (int lane = 0; lane < LANES; lane++) {
        if (!is_on(on, lane))
            continue;
        const u64 last = (addresses[lane] + bytes - 1) / LINE;
        for (u64 line = addresses[lane] / LINE; line <= last; line++) {
            int k = count - 1;
            while (k >= 0 && seen[k] != line)
                k--;
            if (k < 0 && count < 2 * LANES)
                seen[count++] = line;
        }
    }
    wave.stats->vmem_lines += count;
    wave.stats->vmem_bytes += (u64)bytes * __builtin_popcountll(on);
}

enum Action { LOAD, STORE, ADD };

static void load_small(Wave& wave, const Instruction& instruction, u64 address, bool inside, u32& to) {
    u32 value = 0;
    if (inside)
        memcpy(&value, memory_at(wave, address, instruction.bytes, false), instruction.bytes);
    if (instruction.is_signed)
        value = instruction.bytes == 1 ? (u32)(i32)(i8)value : (u32)(i32)(i16)value;
    if (instruction.keep_high)
        to = (to & 0xffff0000u) | (value & 0xffff);
    else if (instruction.keep_low)
        to = (to & 0xffff) | value << 16;
    else
        to = value;
}

static void store_small(Wave& wave, const Instruction& instruction, u64 address, u32 from) {
    const u32 value = instruction.keep_low ? from >> 16 : from;
    memcpy(memory_at(wave, address, instruction.bytes, true), &value, instruction.bytes);
}

// Lanes outside their buffer load 0 and store nothing.
template <Action ACTION>
static void access(Wave& wave, const Instruction& instruction, const u64* addresses, Mask inside, u32 data) {
    const Mask on = exec(wave);
    for (int lane = 0; lane < LANES; lane++) {
        if (!is_on(on, lane))
            continue;
        const bool valid = is_on(inside, lane);
        if (instruction.bytes < 4) {
            u32& word = wave.v[data].lane[lane];
            if (ACTION == LOAD)
                load_small(wave, instruction, addresses[lane], valid, word);
            else if (valid)
                store_small(wave, instruction, addresses[lane], word);
            continue;
        }
        for (int k = 0; k < instruction.width; k++) {
            const u64 address = addresses[lane] + 4 * k;
            u32& word = wave.v[data + k].lane[lane];
            if (!valid) {
                if (ACTION == LOAD)
                    word = 0;
                continue;
            }
            u8* at = memory_at(wave, address, 4, ACTION != LOAD);
            u32 value = 0;
            memcpy(&value, at, 4);
            if (ACTION == LOAD)
                word = value;
            value = ACTION == ADD ? value + word : word;
            if (ACTION != LOAD)
                memcpy(at, &value, 4);
        }
    }
}

static int bytes_of(const Instruction& instruction) {
    return instruction.bytes < 4 ? instruction.bytes : 4 * instruction.width;
}

// Data, address or off, descriptor, scalar offset.
template <Action ACTION>
static void run_buffer(Wave& wave, const Instruction& instruction) {
    const Buffer buffer = read_buffer(wave, instruction.source[1]);
    const u32 scalar_offset = read_scalar(wave, instruction.source[2]);
    const int bytes = bytes_of(instruction);
    const u32 first = instruction.source[0].value;
    const Mask on = exec(wave);
    Mask inside = 0;
    u64 addresses[LANES];
    for (int lane = 0; lane < LANES; lane++) {
        if (!is_on(on, lane))
            continue;
        const u64 index = instruction.lane_index ? wave.v[first].lane[lane] : 0;
        u32 offset = instruction.offset;
        if (instruction.lane_offset)
            offset += wave.v[first + (instruction.lane_index ? 1 : 0)].lane[lane];
        const bool by_index = buffer.stride && instruction.lane_index;
        const bool valid = by_index ? index < buffer.records
                                    : (u64)offset + scalar_offset + bytes <= buffer.size();
        if (valid)
            inside |= (Mask)1 << lane;
        else
            wave.stats->out_of_bounds++;
        addresses[lane] = buffer.base + index * buffer.stride + offset + scalar_offset;
    }
    count_lines(wave, addresses, inside, bytes);
    access<ACTION>(wave, instruction, addresses, inside, instruction.result.value);
}

// Load: result, address, base or off. Store and sum: address, data, base or off. With a base the address is an offset
// of 32 bits, without one it has 64.
template <Action ACTION>
static void run_global(Wave& wave, const Instruction& instruction) {
    const Operand& address = ACTION == LOAD ? instruction.source[0] : instruction.result;
    const Operand& data = ACTION == LOAD ? instruction.result : instruction.source[0];
    const Operand& base = instruction.source[1];
    const Mask on = exec(wave);
    u64 addresses[LANES];
    for (int lane = 0; lane < LANES; lane++) {
        if (!is_on(on, lane))
            continue;
        const u64 start = base.is_off() ? read_lane64(wave, address, lane)
                                        : read_scalar64(wave, base) + wave.v[address.value].lane[lane];
        addresses[lane] = start + instruction.offset;
    }
    count_lines(wave, addresses, on, bytes_of(instruction));
    access<ACTION>(wave, instruction, addresses, on, data.value);
}

struct SizeRow {
    Action action;
    int bytes;
    bool is_signed = false;
    enum { WHOLE, LOW, HIGH } half = WHOLE;  // the part of the register that a d16 instruction means
};

static const std::map<std::string, SizeRow>& small_sizes() {
    static const std::map<std::string, SizeRow> rows = {
        {"load_u8", {LOAD, 1}},
        {"load_i8", {LOAD, 1, true}},
        {"load_u16", {LOAD, 2}},
        {"load_i16", {LOAD, 2, true}},
        {"load_d16_u8", {LOAD, 1, false, SizeRow::LOW}},
        {"load_d16_i8", {LOAD, 1, true, SizeRow::LOW}},
        {"load_d16_b16", {LOAD, 2, false, SizeRow::LOW}},
        {"load_d16_hi_u8", {LOAD, 1, false, SizeRow::HIGH}},
        {"load_d16_hi_i8", {LOAD, 1, true, SizeRow::HIGH}},
        {"load_d16_hi_b16", {LOAD, 2, false, SizeRow::HIGH}},
        {"store_b8", {STORE, 1}},
        {"store_b16", {STORE, 2}},
        {"store_d16_hi_b8", {STORE, 1, false, SizeRow::HIGH}},
        {"store_d16_hi_b16", {STORE, 2, false, SizeRow::HIGH}},
    };
    return rows;
}

static bool select_size(const std::string& what, Instruction& to, Action& action) {
    const auto small = small_sizes().find(what);
    if (small != small_sizes().end()) {
        action = small->second.action;
        to.bytes = small->second.bytes;
        to.is_signed = small->second.is_signed;
        to.keep_high = small->second.half == SizeRow::LOW;
        to.keep_low = small->second.half == SizeRow::HIGH;
        return true;
    }
    to.width = what == "atomic_add_u32" ? 1 : words_of(what);
    action = what[0] == 'l' ? LOAD : what[0] == 's' ? STORE : ADD;
    if (action != ADD && what.find("_b") != what.find('_'))
        return false;
    return to.width > 0 && to.width <= 4 && (what[0] == 'l' || what[0] == 's' || what == "atomic_add_u32");
}

// A register's half is written with it (v0.h) where the text knows halves.
static void take_half(Text& text, Operand& data, Action action, Instruction& to) {
    if (!data.half)
        return;
    if (to.bytes == 4)
        text.refuse("half");
    to.keep_low = data.high;
    to.keep_high = !data.high && action == LOAD;
    text.takes_halves = true;
}

bool select_vector_memory(Text& text, Instruction& to) {
    const bool buffer = text.starts("buffer_");
    if (!buffer && !text.starts("global_"))
        return false;
    Action action = LOAD;
    if (!select_size(text.name.substr(7), to, action))
        return false;
    text.expect(buffer ? 4 : 3);
    take_operands(text, to);
    Operand& data = buffer || action == LOAD ? to.result : to.source[0];
    const Operand& address = buffer || action == LOAD ? to.source[0] : to.result;
    take_half(text, data, action, to);
    to.offset = text.number("offset");
    if (action != ADD) {
        text.word("glc");  // caches have nothing to do here; a sum with glc would return what was there
        text.word("slc");
        text.word("dlc");
    }
    if (buffer) {
        to.lane_offset = text.word("offen");
        to.lane_index = text.word("idxen");
    }
    const bool wants_address = !buffer || to.lane_offset || to.lane_index;
    if (!data.is_vector() || address.is_vector() != wants_address || to.source[1].kind != Operand::SCALAR)
        text.refuse("operands");
    if (buffer)
        to.execute = action == LOAD ? run_buffer<LOAD> : action == STORE ? run_buffer<STORE> : run_buffer<ADD>;
    else
        to.execute = action == LOAD ? run_global<LOAD> : action == STORE ? run_global<STORE> : run_global<ADD>;
    to.stat = VMEM;
    return true;
}

}  // namespace rdna3::WAVES
