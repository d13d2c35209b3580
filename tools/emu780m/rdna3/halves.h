// Halves (IEEE 754 binary16): read exactly, written as the dispatch's FLOAT_MODE rounds them.
#pragma once
#include <cmath>

#include "base.h"

namespace rdna3 {

enum Rounding { NEAREST, UP, DOWN, TOWARD_ZERO };  // as FLOAT_MODE numbers them

// Of the dispatch that runs; RADV asks for TOWARD_ZERO where a shader uses packHalf2x16.
inline Rounding half_rounding = NEAREST;

struct Half {
    u16 bits;
};

inline float half_to_float(u32 bits) {
    return (float)std::bit_cast<_Float16>((u16)bits);
}

inline float value_of(Half x) {
    return half_to_float(x.bits);
}

// The conversion rounds to nearest; the other modes take the neighbour where that went the wrong way.
inline u16 round_to_half(double value, Rounding rounding) {
    const _Float16 nearest = (_Float16)value;
    const u16 bits = std::bit_cast<u16>(nearest);
    if (rounding == NEAREST || (double)nearest == value || value != value)
        return bits;
    const bool grown = std::fabs((double)nearest) > std::fabs(value);
    const bool should_grow = (rounding == UP && value > 0) || (rounding == DOWN && value < 0);
    return bits + (int)should_grow - (int)grown;
}

inline Half to_half(double value) {
    return {round_to_half(value, half_rounding)};
}

inline Half to_half(float value) {
    if (half_rounding == NEAREST)
        return {std::bit_cast<u16>((_Float16)value)};
    return {round_to_half((double)value, half_rounding)};
}

// a * b + c, rounded once. The product is exact in a double; of the sum, what a double cannot hold goes into its last
// bit (rounding to odd), which keeps every decision of the second rounding right.
inline Half half_fma(Half a, Half b, Half c) {
    const double product = (double)value_of(a) * value_of(b);
    const double addend = value_of(c);
    double sum = product + addend;
    const double part = sum - product;
    const double rest = (product - (sum - part)) + (addend - part);
    if (std::isfinite(sum) && rest != 0) {
        u64 bits = std::bit_cast<u64>(sum);
        if (!(bits & 1))
            bits += (rest > 0) == (sum > 0) ? 1 : -1;
        sum = std::bit_cast<double>(bits);
    }
    return to_half(sum);
}

}  // namespace rdna3
