#include "addresses.h"

#include "ranges.h"

#include <algorithm>

#include <amdgpu.h>

namespace device {
namespace {

constexpr uint64_t PAGE = 4096;
constexpr uint64_t GUARD = PAGE;  // between pieces, so that an access past one finds nothing
constexpr uint64_t LOW_START = 0x200000;
constexpr uint64_t LOW_END = 0x800000000000;
constexpr uint64_t WORD_START = HIGH_ADDRESSES + 0x100000;
constexpr uint64_t WORD_END = HIGH_ADDRESSES + (1ull << 32);

Ranges low(LOW_START, LOW_END);
Ranges words(WORD_START, WORD_END);
Ranges high(WORD_END, HIGH_ADDRESSES + (1ull << SPARSE_BIT));

}  // namespace

AddressPiece take_addresses(uint64_t bytes, uint64_t alignment, uint64_t flags) {
    Ranges& from = flags & AMDGPU_VA_RANGE_32_BIT ? words : flags & AMDGPU_VA_RANGE_HIGH ? high : low;
    const uint64_t taken = ((bytes + PAGE - 1) & ~(PAGE - 1)) + GUARD;
    return {from.take(taken, std::max(alignment, PAGE)), taken};
}

void give_back_addresses(const AddressPiece& piece) {
    Ranges& from = piece.start < LOW_END ? low : piece.start < WORD_END ? words : high;
    from.give_back(piece.start, piece.bytes);
}

}  // namespace device
