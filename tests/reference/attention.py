"""Causal grouped-query attention with an output gate (HF `Qwen3_5Attention`; Vaswani et al. 2017, equation 1)."""

import numpy as np

from tests.reference import activations


def split_query_gate(joint: np.ndarray, head_count: int, head_size: int) -> tuple[np.ndarray, np.ndarray]:
    """joint [T, 2 * H * Dh], per head Dh query then Dh gate values -> query [T, H, Dh], gate [T, H * Dh]."""
    per_head = joint.reshape(len(joint), head_count, 2, head_size)
    return per_head[:, :, 0], per_head[:, :, 1].reshape(len(joint), head_count * head_size)


def kv_heads(head_count: int, kv_head_count: int) -> np.ndarray:
    """KV head of each query head, int [H]: neighbouring query heads share one (HF `repeat_kv`)."""
    return np.arange(head_count) // (head_count // kv_head_count)


def visible(query_positions: np.ndarray, key_positions: np.ndarray) -> np.ndarray:
    """bool [T, S]: a token sees itself and what came before."""
    return np.asarray(key_positions)[None, :] <= np.asarray(query_positions)[:, None]


def attend(q, keys, values, query_positions, key_positions) -> tuple[np.ndarray, np.ndarray]:
    """q [T, H, Dh], keys, values [S, G, Dh], both rotated, positions int [T], [S].

    Returns the outputs [T, H, Dh] and the softmax rows [H, T, S] (0 where masked)."""
    heads = kv_heads(q.shape[1], keys.shape[1])
    scores = np.matmul(q.transpose(1, 0, 2), keys[:, heads].transpose(1, 2, 0)) / np.sqrt(q.shape[-1])  # [H, T, S]
    scores = np.where(visible(query_positions, key_positions), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    rows = weights / weights.sum(-1, keepdims=True)
    return np.matmul(rows, values[:, heads].transpose(1, 0, 2)).transpose(1, 0, 2), rows


def output_gate(gate: np.ndarray) -> np.ndarray:
    """gate [T, H * Dh] -> the factor of the attention output: sigmoid, not silu (Qiu et al. 2025, Gated Attention)."""
    return activations.sigmoid(gate)
