"""Operands at which arithmetic goes wrong first."""

import numpy as np

FLOATS = np.array(
    [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.0, 1 + 2**-23, 1 - 2**-24, 1e-20, -1e-20, 3.4028235e38, -3.4028235e38]
    + [2**-126, -(2**-126), 2**-127, 2**-149, -(2**-149), 65504.0, 65520.0, 2**24 + 1, np.inf, -np.inf, np.nan],
    np.float32,
)
WORDS = np.array(
    [0, 1, 2, 3, 5, 31, 32, 33, 63, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0xFFFFFF, 0x1000000]
    + [0x7FFFFFFF, 0x80000000, 0x80000001, 0xDEADBEEF, 0xFFFF0000, 0xFFFFFFFE, 0xFFFFFFFF],
    np.uint32,
)
# Halves by their bits: zeros, denormals, units, the largest, infinities, NaNs.
HALVES = np.array(
    [0x0000, 0x8000, 0x0001, 0x8001, 0x0002, 0x03FF, 0x83FF, 0x0400, 0x8400, 0x0401, 0x1400, 0x2E66, 0x3555]
    + [0x3800, 0x3BFF, 0x3C00, 0xBC00, 0x3C01, 0xC000, 0x4248, 0x5640, 0x6400, 0xE401, 0x7800, 0x7BFF, 0xFBFF]
    + [0x7C00, 0xFC00, 0x7E00, 0xFE01],
    np.uint32,
)


def flushed(x: np.ndarray) -> np.ndarray:
    """Floats with zeros of the same sign in place of denormals."""
    small = np.abs(x) < np.finfo(np.float32).tiny
    return np.where(small, np.copysign(np.float32(0), x), x).astype(np.float32)
