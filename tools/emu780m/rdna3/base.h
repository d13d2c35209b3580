// Short names of the machine's types, bits of floats, and how an error ends a run.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace rdna3 {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using i8 = int8_t;
using i16 = int16_t;
using i32 = int32_t;
using i64 = int64_t;

[[noreturn]] inline void fail(const std::string& why) {
    throw std::runtime_error(why);
}

inline float as_float(u32 bits) {
    return std::bit_cast<float>(bits);
}

inline u32 as_bits(float value) {
    return std::bit_cast<u32>(value);
}

}  // namespace rdna3
