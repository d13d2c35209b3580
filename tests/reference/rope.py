"""Rotary position embedding: Su et al. 2021, equation 34, in the NEOX pairing (HF `rotate_half`).

Pair i is (i, i + R/2), not neighbours. Only the first R values of a head are rotated (`partial_rotary_factor`).
Text has equal time, height and width positions, so the interleaved M-RoPE of the model is this plain rotation.
"""

import numpy as np


def angles(positions: np.ndarray, rotary_dims: int, base: float) -> np.ndarray:
    """positions int [T], any increasing values -> float64 [T, R/2]: position * base^(-2i/R)."""
    exponents = -2.0 * np.arange(rotary_dims // 2) / rotary_dims
    return np.asarray(positions, np.float64)[:, None] * base**exponents


def rotate(x: np.ndarray, positions: np.ndarray, rotary_dims: int, base: float) -> np.ndarray:
    """x [T, heads, Dh] -> the same shape; values from R on are copied."""
    angle = angles(positions, rotary_dims, base)[:, None, :]
    cos, sin = np.cos(angle).astype(x.dtype), np.sin(angle).astype(x.dtype)
    half = rotary_dims // 2
    first, second = x[..., :half], x[..., half:rotary_dims]
    out = x.copy()
    out[..., :half] = first * cos - second * sin
    out[..., half:rotary_dims] = first * sin + second * cos
    return out
