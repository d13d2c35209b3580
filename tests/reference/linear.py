"""Weights of any GGUF type to floats by the `gguf` package (not by this project's code), and the product with them."""

import gguf
import numpy as np


def dequantise(data: np.ndarray, tensor_type: gguf.GGMLQuantizationType) -> np.ndarray:
    """data [rows, row bytes] uint8 (or the reader's typed array) -> float64 [rows, columns]."""
    return gguf.quants.dequantize(data, tensor_type).astype(np.float64)


def linear(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """x [T, in], weight [out, in] -> [T, out]."""
    return x @ weight.T


def half_rows(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x [T, K] -> (halves float16 [T, K], factors [T, 1]): each row by the power of two that brings its greatest
    magnitude to between 2^14 and 2^15, at most 2^126, and what undoes that.
    """
    _, exponent = np.frexp(np.abs(x).max(axis=1, keepdims=True))  # the magnitude is below 2^exponent
    power = np.where(np.abs(x).max(axis=1, keepdims=True) == 0, 126, np.minimum(15 - exponent, 126))
    return np.ldexp(x.astype(np.float64), power).astype(np.float16), np.ldexp(1.0, -power)


def half_linear(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """linear of x [T, in] and weight [out, in] as halves, without further rounding."""
    halves, factors = half_rows(x)
    return halves.astype(np.float64) @ weight.astype(np.float16).astype(np.float64).T * factors
