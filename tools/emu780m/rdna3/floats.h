// Choices between floats and conversions to integers, the same for vectors and scalars.
#pragma once
#include <cmath>

#include "base.h"

namespace rdna3 {

// A NaN loses; -0 is less than 0.
inline float least(float a, float b) {
    if (a != a)
        return b;
    if (b != b)
        return a;
    return a < b || (a == b && std::signbit(a)) ? a : b;
}

inline float most(float a, float b) {
    if (a != a)
        return b;
    if (b != b)
        return a;
    return a > b || (a == b && !std::signbit(a)) ? a : b;
}

// Toward zero; what does not fit becomes the nearest integer that does, a NaN 0.
inline u32 to_unsigned(float x) {
    return !(x > 0) ? 0 : x >= 4294967296.0f ? ~0u : (u32)x;
}

inline i32 to_signed(float x) {
    if (x != x)
        return 0;
    return x >= 2147483648.0f ? INT32_MAX : x <= -2147483648.0f ? INT32_MIN : (i32)x;
}

}  // namespace rdna3
