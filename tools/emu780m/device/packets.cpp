#include "packets.h"

#include "clock.h"
#include "dispatch.h"
#include "log.h"
#include "memory.h"

#include <cinttypes>
#include <cstring>

namespace device {
namespace {

// Type 3 packets, by the names of AMD's public headers.
enum Opcode : uint32_t {
    NOP = 0x10,
    SET_BASE = 0x11,
    CLEAR_STATE = 0x12,
    DISPATCH_DIRECT = 0x15,
    DISPATCH_INDIRECT = 0x16,
    CONTEXT_CONTROL = 0x28,
    WRITE_DATA = 0x37,
    WAIT_REG_MEM = 0x3c,
    INDIRECT_BUFFER = 0x3f,
    COPY_DATA = 0x40,
    PFP_SYNC_ME = 0x42,
    EVENT_WRITE = 0x46,
    RELEASE_MEM = 0x49,
    DMA_DATA = 0x50,
    ACQUIRE_MEM = 0x58,
    SET_CONTEXT_REG = 0x69,
    SET_SH_REG = 0x76,
    SET_UCONFIG_REG = 0x79,
    SET_UCONFIG_REG_INDEX = 0x7a,
    SET_SH_REG_INDEX = 0x9b,
    SET_CONTEXT_REG_PAIRS = 0xb8,
    SET_CONTEXT_REG_PAIRS_PACKED = 0xb9,
    SET_SH_REG_PAIRS = 0xba,
    SET_SH_REG_PAIRS_PACKED = 0xbb,
    SET_SH_REG_PAIRS_PACKED_N = 0xbd,
};

constexpr uint32_t NO_BODY = 0x3fff;  // count field of a NOP of one word
constexpr uint32_t CHAIN = 1 << 20;   // of an INDIRECT_BUFFER: goes on there and does not come back

ShaderRegisters registers;

// A packet's body, words from 0.
class Packet {
public:
    const uint32_t words;

    Packet(uint64_t address, uint32_t words) : words(words), address_(address) {}
    uint32_t word(uint32_t k) const { return word_at(address_ + 4 * k, "packet"); }
    uint64_t address(uint32_t k) const { return word(k) | static_cast<uint64_t>(word(k + 1)) << 32; }

private:
    const uint64_t address_;
};

void store(uint64_t address, uint64_t value, uint32_t bytes, const char* what) {
    memcpy(bytes_at(address, bytes, true, what), &value, bytes);
}

void set_registers(const Packet& packet) {
    for (uint32_t k = 1; k < packet.words; k++)
        registers.set((packet.word(0) & 0xffff) + k - 1, packet.word(k));
}

void set_register_pairs(const Packet& packet) {
    for (uint32_t k = 0; k + 1 < packet.words; k += 2)
        registers.set(packet.word(k) & 0xffff, packet.word(k + 1));
}

// Two indices in a word, then their values.
void set_packed_pairs(const Packet& packet) {
    for (uint32_t k = 1; k + 2 < packet.words; k += 3) {
        registers.set(packet.word(k) & 0xffff, packet.word(k + 1));
        registers.set(packet.word(k) >> 16, packet.word(k + 2));
    }
}

void write_data(const Packet& packet) {
    constexpr uint32_t TO_REGISTER = 0;
    if ((packet.word(0) >> 8 & 15) == TO_REGISTER)
        return;
    for (uint32_t k = 3; k < packet.words; k++)
        store(packet.address(1) + 4 * (k - 3), packet.word(k), 4, "WRITE_DATA");
}

void copy_data(const Packet& packet) {
    enum { REGISTER = 0, MEMORY = 1, MEMORY_BY_L2 = 2, IMMEDIATE = 5, CLOCK = 9 };
    const uint32_t control = packet.word(0);
    const uint32_t bytes = control >> 16 & 1 ? 8 : 4;
    uint64_t value = 0;
    switch (control & 15) {
    case MEMORY:
    case MEMORY_BY_L2: memcpy(&value, bytes_at(packet.address(1), bytes, false, "COPY_DATA"), bytes); break;
    case IMMEDIATE: value = packet.address(1); break;
    case CLOCK: value = ticks; break;
    default: stop("COPY_DATA: from source %u, which is not known here", control & 15);
    }
    if ((control >> 8 & 15) == REGISTER)
        stop("COPY_DATA: to a register, which is not known here");
    store(packet.address(3), value, bytes, "COPY_DATA");
}

// What is to be written when all before it is done: at once, then.
void release_memory(const Packet& packet) {
    enum { NOTHING = 0, VALUE_32 = 1, VALUE_64 = 2, CLOCK = 3 };
    const uint64_t address = packet.address(2) & ~3ull;
    switch (packet.word(1) >> 29) {
    case NOTHING: break;
    case VALUE_32: store(address, packet.word(4), 4, "RELEASE_MEM"); break;
    case VALUE_64: store(address, packet.address(4), 8, "RELEASE_MEM"); break;
    case CLOCK: store(address, ticks, 8, "RELEASE_MEM"); break;
    default: stop("RELEASE_MEM: writes %u, which is not known here", packet.word(1) >> 29);
    }
}

// Copies and fills; also a prefetch into the cache, whose target is nothing.
void move_data(const Packet& packet) {
    enum { TO_ADDRESS = 0, TO_NOTHING = 2, TO_ADDRESS_BY_L2 = 3, FROM_WORD = 2 };
    const uint32_t control = packet.word(0);
    const uint32_t bytes = packet.word(5) & 0x3ffffff;
    const uint32_t target = control >> 20 & 3;
    if (!bytes || target == TO_NOTHING)
        return;
    if (target != TO_ADDRESS && target != TO_ADDRESS_BY_L2)
        stop("DMA_DATA: to target %u, which is not known here", target);
    uint8_t* const to = bytes_at(packet.address(3), bytes, true, "DMA_DATA");
    if ((control >> 29 & 3) != FROM_WORD) {
        memmove(to, bytes_at(packet.address(1), bytes, false, "DMA_DATA"), bytes);
        return;
    }
    const uint32_t word = packet.word(1);
    for (uint32_t k = 0; k + 4 <= bytes; k += 4)
        memcpy(to + k, &word, 4);
}

void dispatch_indirect(const Packet& packet, uint64_t base) {
    const uint64_t at = packet.words == 3 ? packet.address(0) : base + packet.word(0);
    Grid grid{{}, packet.word(packet.words - 1)};
    for (uint32_t k = 0; k < 3; k++)
        grid.groups[k] = word_at(at + 4 * k, "DISPATCH_INDIRECT");
    run_dispatch(registers, grid);
}

void run_packet(uint32_t opcode, const Packet& packet, uint64_t& base) {
    switch (opcode) {
    case SET_SH_REG:
    case SET_SH_REG_INDEX: return set_registers(packet);
    case SET_SH_REG_PAIRS: return set_register_pairs(packet);
    case SET_SH_REG_PAIRS_PACKED:
    case SET_SH_REG_PAIRS_PACKED_N: return set_packed_pairs(packet);
    case SET_BASE: base = packet.address(1); return;
    case DISPATCH_DIRECT:
        return run_dispatch(registers, {{packet.word(0), packet.word(1), packet.word(2)}, packet.word(3)});
    case DISPATCH_INDIRECT: return dispatch_indirect(packet, base);
    case WRITE_DATA: return write_data(packet);
    case COPY_DATA: return copy_data(packet);
    case RELEASE_MEM: return release_memory(packet);
    case DMA_DATA: return move_data(packet);
    case NOP:
    case CLEAR_STATE:
    case CONTEXT_CONTROL:
    case WAIT_REG_MEM:
    case PFP_SYNC_ME:
    case EVENT_WRITE:
    case ACQUIRE_MEM:
    case SET_CONTEXT_REG:
    case SET_CONTEXT_REG_PAIRS:
    case SET_CONTEXT_REG_PAIRS_PACKED:
    case SET_UCONFIG_REG:
    case SET_UCONFIG_REG_INDEX: return;
    default: stop("packet %#x of %u words is not known here", opcode, packet.words);
    }
}

}  // namespace

void run_commands(uint64_t address, uint32_t words) {
    uint64_t end = address + 4ull * words;
    uint64_t base = 0;  // of DISPATCH_INDIRECT
    while (address < end) {
        const uint32_t header = word_at(address, "command buffer");
        const uint32_t type = header >> 30;
        const uint32_t opcode = header >> 8 & 255;
        const uint32_t count = header >> 16 & 0x3fff;
        if (type == 2 || (type == 3 && opcode == NOP && count == NO_BODY)) {  // a word of padding
            address += 4;
            continue;
        }
        if (type != 3)
            stop("packet of type %u at %#" PRIx64 ", which is not known here", type, address);
        const Packet packet(address + 4, count + 1);
        if (log_wanted(2))
            log("packet %#x of %u words", opcode, packet.words);
        address += 4 + 4ull * packet.words;
        if (opcode != INDIRECT_BUFFER) {
            run_packet(opcode, packet, base);
            continue;
        }
        const uint64_t target = packet.address(0);
        const uint32_t size = packet.word(2) & 0xfffff;
        if (packet.word(2) & CHAIN) {
            address = target;
            end = target + 4ull * size;
        } else {
            run_commands(target, size);
        }
    }
}

}  // namespace device
