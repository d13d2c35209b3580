"""Weights of any GGUF type to floats by the `gguf` package (not by this project's code), and the product with them."""

import gguf
import numpy as np


def dequantise(data: np.ndarray, tensor_type: gguf.GGMLQuantizationType) -> np.ndarray:
    """data [rows, row bytes] uint8 (or the reader's typed array) -> float64 [rows, columns]."""
    return gguf.quants.dequantize(data, tensor_type).astype(np.float64)


def linear(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """x [T, in], weight [out, in] -> [T, out]."""
    return x @ weight.T
