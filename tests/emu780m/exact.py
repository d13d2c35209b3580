"""Rounding without a rounding error of its own: halves and floats out of exact fractions, for comparisons."""

from __future__ import annotations

from bisect import bisect_left
from fractions import Fraction

import numpy as np

NEAREST, UP, DOWN, TOWARD_ZERO = range(4)  # as FLOAT_MODE numbers them

_FINITE = np.arange(0x7C00, dtype=np.uint16).view(np.float16)  # 0 and all positive halves, in order
_UNITS = [int(Fraction(float(x)) * 2**24) for x in _FINITE]


def half(x: Fraction, rounding: int) -> np.uint16:
    """The bits of a value other than 0 as a half: the neighbour that the rounding names; a tie goes to the even one."""
    sign = 0x8000 if x < 0 else 0
    size = abs(x) * 2**24
    at = bisect_left(_UNITS, size)
    if at < len(_UNITS) and _UNITS[at] == size:
        return np.uint16(sign | at)
    below, above = at - 1, at  # 0x7c00, infinity, follows the largest
    if rounding == NEAREST:
        upper = _UNITS[above] if above < len(_UNITS) else 65536 * 2**24
        middle = Fraction(_UNITS[below] + upper, 2)
        chosen = above if size > middle or (size == middle and above % 2 == 0) else below
    else:
        grows = (rounding == UP and x > 0) or (rounding == DOWN and x < 0)
        chosen = above if grows else below
    return np.uint16(sign | chosen)


def single(x: Fraction) -> np.float32:
    """A value other than 0 as a float, rounded to nearest, ties to even."""
    with np.errstate(over="ignore"):
        guess = np.float32(float(x))
    if not np.isfinite(guess):
        largest = np.finfo(np.float32).max
        limit = Fraction(float(largest)) + Fraction(2) ** 103
        return guess if abs(x) >= limit else np.copysign(largest, guess)
    near = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    finite = [y for y in near if np.isfinite(y)]
    return min(finite, key=lambda y: (abs(Fraction(float(y)) - x), int(y.view(np.uint32)) & 1))


def same_floats(got: np.ndarray, wanted: np.ndarray) -> bool:
    """Equal bits, but that any NaN is like another."""
    got, wanted = got.view(np.float32), wanted.astype(np.float32)
    return bool(np.all((np.isnan(got) & np.isnan(wanted)) | (got.view(np.uint32) == wanted.view(np.uint32))))


def same_halves(got: np.ndarray, wanted: np.ndarray) -> bool:
    """The same for halves, given as bits."""
    got, wanted = got.astype(np.uint16), wanted.astype(np.uint16)
    nan = (got & 0x7FFF > 0x7C00) & (wanted & 0x7FFF > 0x7C00)
    return bool(np.all(nan | (got == wanted)))
