// What the instructions that touch memory share: addresses, buffer descriptors, widths out of names.
#pragma once
#include "wave.h"

namespace rdna3::WAVES {

// Where the bytes at one of the GPU's addresses lie; throws where there is no memory.
u8* memory_at(const Wave& wave, u64 address, u32 size, bool write);

// An address of 48 bits in 64.
inline u64 canonical(u64 address) {
    return (u64)((i64)(address << 16) >> 16);
}

struct Buffer {
    u64 base;
    u32 stride;
    u64 records;
    u64 size() const { return stride ? records * stride : records; }
};

// From the four scalar registers of a descriptor.
Buffer read_buffer(const Wave& wave, const Operand& operand);

// Words of a name that ends so: load_b128, store_2addr_b64; 0: none of them.
int words_of(const std::string& name);

}  // namespace rdna3::WAVES
