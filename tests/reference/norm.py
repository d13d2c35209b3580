"""Norms over the last axis.

RMSNorm: Zhang and Sennrich 2019, equation 4, with eps added to the mean square (HF `Qwen3_5RMSNorm`).
GGUF weights already hold HF's 1 + w, so the weight only multiplies.
"""

import numpy as np

from tests.reference import activations


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x [..., D], weight [D] -> [..., D]."""
    mean_square = np.mean(np.square(x), axis=-1, keepdims=True)
    return x / np.sqrt(mean_square + eps) * weight


def l2_norm(x: np.ndarray, eps: float) -> np.ndarray:
    """x [..., D] -> [..., D]; eps inside the root, added to the sum (HF `l2norm` of the gated delta net, FLA)."""
    return x / np.sqrt(np.sum(np.square(x), axis=-1, keepdims=True) + eps)


def key_norm(k: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """Per-head RMSNorm of attention keys, k [T, G, Dh], weight [Dh] (HF `Qwen3_5Attention.k_norm`)."""
    return rms_norm(k, weight, eps)


def gated_rms_norm(x: np.ndarray, z: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x, z [T, Hv, Dv], weight [Dv]: norm, then weight, then silu(z) (HF `Qwen3_5RMSNormGated`)."""
    return rms_norm(x, weight, eps) * activations.silu(z)
