"""Elementwise functions."""

import numpy as np


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + e^-x), through tanh so that no exponent overflows."""
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def silu(x: np.ndarray) -> np.ndarray:
    """x sigmoid(x): Elfwing et al. 2017."""
    return x * sigmoid(x)


def softplus(x: np.ndarray) -> np.ndarray:
    """ln(1 + e^x) for any x; PyTorch returns x above 20, which differs by less than 3e-9."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def swiglu(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """silu(gate) up: Shazeer 2020, equation 6 (HF `Qwen3_5MLP`)."""
    return silu(gate) * up
