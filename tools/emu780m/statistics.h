#pragma once
#include "rdna3.h"

// What a dispatch did, told in two ways: EMU_LOG=1 prints a line, EMU_STATS=FILE appends a line of JSON to FILE.
namespace statistics {

// What a 780M must spend at least, in cycles: vector issue on 24 SIMDs; shared memory at 128 bytes and vector loads and
// stores at one line of 128 bytes for each of 12 compute units. No waits, caches or occupancy in it.
struct Bounds {
    double issue;
    double lds;
    double lines;
};
Bounds bounds(const rdna3::Dispatch&, const rdna3::Stats&);

// Call between a dispatch's first and last access to memory: at `offset` bytes of the device's memory, so many bytes.
// Counts the distinct lines of 128 bytes that a dispatch reads and writes, where EMU_STATS asks for it.
bool footprint_wanted();
void touch(uint64_t offset, uint32_t size, bool write);

// Before a dispatch, and after it; seconds: of the host. Throws std::runtime_error where the file cannot be written.
void begin();
void end(const rdna3::Dispatch&, const rdna3::Memory&, const rdna3::Stats&, double seconds);

}  // namespace statistics
