#pragma once
#include <cstdint>

namespace device {

// A piece of the GPU's addresses.
struct AddressPiece {
    uint64_t start;
    uint64_t bytes;
};

// As libdrm hands them out: from the low half, from the high half, or from the 4 GiB at its start, whose upper 32 bits
// are all the same. flags: AMDGPU_VA_RANGE_*. start 0: there is no room.
AddressPiece take_addresses(uint64_t bytes, uint64_t alignment, uint64_t flags);
void give_back_addresses(const AddressPiece&);

constexpr uint64_t HIGH_ADDRESSES = 0xffff800000000000;
constexpr uint32_t UPPER_WORD = HIGH_ADDRESSES >> 32;  // of the 4 GiB
// Half of the high range is for sparse buffers: addresses with this bit, which no other has. Drivers clear it in what
// scalar loads read, so that those of sparse buffers find something. It is the highest bit in which the range's ends
// differ (0xffff8000'00000000 and 0xffffffff'ffffe000).
constexpr uint32_t SPARSE_BIT = 46;

}  // namespace device
