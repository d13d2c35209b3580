// NaN by its bits: max and the comparisons of floats may drop it, and compilers may take it never to be there.
const uint NAN_BITS = 0x7fc00000u, EXPONENT = 0x7f800000u;  // of infinity and NaN every bit of the exponent is set

bool is_finite(float v) { return (floatBitsToUint(v) & EXPONENT) != EXPONENT; }

// v, or NaN where it is infinite.
float finite_or_nan(float v) { return is_finite(v) ? v : uintBitsToFloat(NAN_BITS); }
