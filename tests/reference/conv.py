"""Causal depthwise convolution of the delta net (HF `Qwen3_5GatedDeltaNet.conv1d`, `causal_conv1d_update`), no bias.

y[t, c] = sum_j weight[c, j] x[t - taps + 1 + j, c]: the last tap meets the current token.
The state holds the last taps - 1 inputs, before convolution and silu, oldest first; zeros at the start.
"""

import numpy as np

from tests.reference import activations


def causal_conv(x: np.ndarray, weight: np.ndarray, state: np.ndarray) -> np.ndarray:
    """x [T, C], weight [C, taps], state [taps - 1, C] -> [T, C], before the activation."""
    taps = weight.shape[1]
    padded = np.concatenate([state, x])
    windows = np.lib.stride_tricks.sliding_window_view(padded, taps, axis=0)  # [T, C, taps]
    return np.einsum("tcj,cj->tc", windows, weight)


def next_state(x: np.ndarray, state: np.ndarray) -> np.ndarray:
    """State after x [T, C]; with fewer tokens than rows the old rows move up."""
    return np.concatenate([state, x])[-len(state) :]


def activate(y: np.ndarray) -> np.ndarray:
    return activations.silu(y)
