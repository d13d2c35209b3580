// LDS, the shared memory of a workgroup, with the passes that its banks need; permutations between lanes by its wires.
#include <algorithm>
#include <map>

#include "classes.h"
#include "memory.h"

namespace rdna3::WAVES {

constexpr int BANKS = 32;  // of 4 bytes: 128 bytes in one pass

// Lanes that move 128 bytes together need as many passes as the most different words that they want of one bank.
static void count_passes(Wave& wave, const u32* addresses, Mask on, int words) {
    const int lanes = words == 1 ? 32 : words == 2 ? 16 : 8;
    int passes = 0;
    for (int first = 0; first < LANES; first += lanes) {
        u32 seen[BANKS][BANKS + 1];
        int count[BANKS] = {};
        int most = 0;
        for (int lane = first; lane < first + lanes; lane++) {
            if (!is_on(on, lane))
                continue;
            for (int k = 0; k < words; k++) {
                const u32 word = addresses[lane] / 4 + k;
                const u32 bank = word % BANKS;
                const u32* end = seen[bank] + count[bank];
                if (std::find(static_cast<const u32*>(seen[bank]), end, word) != end || count[bank] > BANKS)
                    continue;
                seen[bank][count[bank]++] = word;
                most = std::max(most, count[bank]);
            }
        }
        passes += most;
    }
    wave.stats->lds_passes += passes;
    wave.stats->lds_least += (__builtin_popcountll(on) * words + BANKS - 1) / BANKS;
}

static u8* lds_at(Wave& wave, u32 address, int bytes) {
    if ((u64)address + bytes > wave.group->lds.size())
        fail("shared memory address " + std::to_string(address));
    return &wave.group->lds[address];
}

// The addresses of the lanes, which are counted.
static void find_addresses(Wave& wave, const Operand& operand, int offset, int words, u32* addresses) {
    for (int lane = 0; lane < LANES; lane++)
        addresses[lane] = wave.v[operand.value].lane[lane] + offset;
    count_passes(wave, addresses, exec(wave), words);
}

static void load(Wave& wave, const u32* addresses, u32 first, int words) {
    const Mask on = exec(wave);
    for (int lane = 0; lane < LANES; lane++)
        for (int k = 0; k < words && is_on(on, lane); k++)
            memcpy(&wave.v[first + k].lane[lane], lds_at(wave, addresses[lane] + 4 * k, 4), 4);
}

static void store(Wave& wave, const u32* addresses, u32 first, int words) {
    const Mask on = exec(wave);
    for (int lane = 0; lane < LANES; lane++)
        for (int k = 0; k < words && is_on(on, lane); k++)
            memcpy(lds_at(wave, addresses[lane] + 4 * k, 4), &wave.v[first + k].lane[lane], 4);
}

static void run_load(Wave& wave, const Instruction& instruction) {
    u32 addresses[LANES];
    find_addresses(wave, instruction.source[0], instruction.offset, instruction.width, addresses);
    load(wave, addresses, instruction.result.value, instruction.width);
}

static void run_store(Wave& wave, const Instruction& instruction) {
    u32 addresses[LANES];
    find_addresses(wave, instruction.result, instruction.offset, instruction.width, addresses);
    store(wave, addresses, instruction.source[0].value, instruction.width);
}

// Both addresses are known before the first result is written: it may be the address's register.
static void run_load_two(Wave& wave, const Instruction& instruction) {
    u32 addresses[2][LANES];
    find_addresses(wave, instruction.source[0], instruction.offset, instruction.width, addresses[0]);
    find_addresses(wave, instruction.source[0], instruction.second_offset, instruction.width, addresses[1]);
    load(wave, addresses[0], instruction.result.value, instruction.width);
    load(wave, addresses[1], instruction.result.value + instruction.width, instruction.width);
}

static void run_store_two(Wave& wave, const Instruction& instruction) {
    u32 addresses[LANES];
    find_addresses(wave, instruction.result, instruction.offset, instruction.width, addresses);
    store(wave, addresses, instruction.source[0].value, instruction.width);
    find_addresses(wave, instruction.result, instruction.second_offset, instruction.width, addresses);
    store(wave, addresses, instruction.source[1].value, instruction.width);
}

// Bytes and halves, zeros above.
static void run_load_small(Wave& wave, const Instruction& instruction) {
    u32 addresses[LANES];
    find_addresses(wave, instruction.source[0], instruction.offset, 1, addresses);
    const Mask on = exec(wave);
    for (int lane = 0; lane < LANES; lane++) {
        if (!is_on(on, lane))
            continue;
        u32 value = 0;
        memcpy(&value, lds_at(wave, addresses[lane], instruction.bytes), instruction.bytes);
        wave.v[instruction.result.value].lane[lane] = value;
    }
}

static void run_store_small(Wave& wave, const Instruction& instruction) {
    u32 addresses[LANES];
    find_addresses(wave, instruction.result, instruction.offset, 1, addresses);
    const Operand& data = instruction.source[0];
    const Mask on = exec(wave);
    for (int lane = 0; lane < LANES; lane++) {
        if (!is_on(on, lane))
            continue;
        const u32 value = wave.v[data.value].lane[lane] >> (data.high ? 16 : 0);
        memcpy(lds_at(wave, addresses[lane], instruction.bytes), &value, instruction.bytes);
    }
}

static void run_add(Wave& wave, const Instruction& instruction) {
    u32 addresses[LANES];
    find_addresses(wave, instruction.result, instruction.offset, 1, addresses);
    const Mask on = exec(wave);
    for (int lane = 0; lane < LANES; lane++) {
        if (!is_on(on, lane))
            continue;
        u8* at = lds_at(wave, addresses[lane], 4);
        u32 value = 0;
        memcpy(&value, at, 4);
        value += wave.v[instruction.source[0].value].lane[lane];
        memcpy(at, &value, 4);
    }
}

// The lane that a byte address names, among the 32 that the lane belongs to.
static int named_lane(const Wave& wave, const Instruction& instruction, int lane) {
    const u32 address = wave.v[instruction.source[0].value].lane[lane] + instruction.offset;
    return (int)(address / 4 % 32) | (lane & 32);
}

// Each lane takes a value; from a lane that is off, 0.
static void run_bpermute(Wave& wave, const Instruction& instruction) {
    alignas(64) u32 values[LANES];
    const u32* from = wave.v[instruction.source[1].value].lane;
    const Mask on = exec(wave);
    for (int lane = 0; lane < LANES; lane++) {
        const int source = named_lane(wave, instruction, lane);
        values[lane] = is_on(on, source) ? from[source] : 0;
    }
    write(wave, instruction.result, values);
}

// Each lane gives its value away; who gets none has 0.
static void run_permute(Wave& wave, const Instruction& instruction) {
    alignas(64) u32 values[LANES] = {};
    const u32* from = wave.v[instruction.source[1].value].lane;
    const Mask on = exec(wave);
    for (int lane = 0; lane < LANES; lane++)
        if (is_on(on, lane))
            values[named_lane(wave, instruction, lane)] = from[lane];
    write(wave, instruction.result, values);
}

// The lane's number is the address, from M0 on.
template <bool STORE>
static void run_addtid(Wave& wave, const Instruction& instruction) {
    u32 addresses[LANES];
    for (int lane = 0; lane < LANES; lane++)
        addresses[lane] = (wave.s[M0] & 0xffff) + instruction.offset + 4 * lane;
    count_passes(wave, addresses, exec(wave), 1);
    if (STORE)
        store(wave, addresses, instruction.result.value, 1);
    else
        load(wave, addresses, instruction.result.value, 1);
}

struct LdsRow {
    void (*execute)(Wave&, const Instruction&);
    int operands;
    int width = 1;  // words
    int bytes = 4;
};

static const std::map<std::string, LdsRow>& lds_instructions() {
    static const std::map<std::string, LdsRow> rows = {
        {"ds_load_b32", {run_load, 2, 1}}, {"ds_load_b64", {run_load, 2, 2}},
        {"ds_load_b96", {run_load, 2, 3}}, {"ds_load_b128", {run_load, 2, 4}},
        {"ds_store_b32", {run_store, 2, 1}}, {"ds_store_b64", {run_store, 2, 2}},
        {"ds_store_b96", {run_store, 2, 3}}, {"ds_store_b128", {run_store, 2, 4}},
        {"ds_load_2addr_b32", {run_load_two, 2, 1}}, {"ds_load_2addr_b64", {run_load_two, 2, 2}},
        {"ds_load_2addr_stride64_b32", {run_load_two, 2, 1}}, {"ds_load_2addr_stride64_b64", {run_load_two, 2, 2}},
        {"ds_store_2addr_b32", {run_store_two, 3, 1}}, {"ds_store_2addr_b64", {run_store_two, 3, 2}},
        {"ds_store_2addr_stride64_b32", {run_store_two, 3, 1}}, {"ds_store_2addr_stride64_b64", {run_store_two, 3, 2}},
        {"ds_load_u8", {run_load_small, 2, 1, 1}}, {"ds_load_u16", {run_load_small, 2, 1, 2}},
        {"ds_store_b8", {run_store_small, 2, 1, 1}}, {"ds_store_b16", {run_store_small, 2, 1, 2}},
        {"ds_add_u32", {run_add, 2}}, {"ds_bpermute_b32", {run_bpermute, 3}}, {"ds_permute_b32", {run_permute, 3}},
        {"ds_load_addtid_b32", {run_addtid<false>, 1}}, {"ds_store_addtid_b32", {run_addtid<true>, 1}},
    };
    return rows;
}

bool select_lds(Text& text, Instruction& to) {
    const auto found = lds_instructions().find(text.name);
    if (found == lds_instructions().end())
        return false;
    const LdsRow& row = found->second;
    text.expect(row.operands);
    take_operands(text, to);
    for (const Operand& operand : text.operands)
        if (!operand.is_vector())
            text.refuse("operands");
    to.execute = row.execute;
    to.width = row.width;
    to.bytes = row.bytes;
    to.stat = LDS;
    if (text.contains("2addr")) {
        const int unit = 4 * row.width * (text.contains("stride64") ? 64 : 1);
        to.offset = text.number("offset0") * unit;
        to.second_offset = text.number("offset1") * unit;
    } else {
        to.offset = text.number("offset");
    }
    // The half of a register that a small store takes its data from.
    text.takes_halves = row.execute == run_store_small;
    return true;
}

}  // namespace rdna3::WAVES
