"""What each kernel should compute, in float64 numpy, written from the formulas. Letters as in ARCHITECTURE.md."""

from __future__ import annotations

import numpy as np


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 + 0.5 * np.tanh(0.5 * x)  # no exponent that overflows


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


def softplus(x: np.ndarray) -> np.ndarray:
    """ln(1 + e^x)."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x [.., D], weight [D]."""
    return x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + eps) * weight


def l2_norm(x: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.sum(np.square(x), axis=-1, keepdims=True) + eps)


def linear(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """x [T, K], weight [N, K] -> [T, N]."""
    return x @ weight.T


def half_rows(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x [T, K], no row all zero -> (float16 [T, K], factors [T, 1]): each row times the power of two that brings its
    greatest magnitude to between 2^14 and 2^15, and what undoes that.
    """
    power = 15 - np.frexp(np.abs(x).max(axis=1, keepdims=True))[1]
    return np.ldexp(x, power).astype(np.float16), np.ldexp(1.0, -power)


def half_linear(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The product of what x and weight are as halves."""
    halves, factors = half_rows(x)
    return linear(halves.astype(np.float64), weight.astype(np.float16).astype(np.float64)) * factors


def rope_table(positions: np.ndarray, rotary_dims: int, theta: float = 1e4) -> np.ndarray:
    """[T, R / 2, 2]: cosine and sine of position * theta^(-2i / R)."""
    angles = positions[:, None] * theta ** (-2.0 * np.arange(rotary_dims // 2) / rotary_dims)
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def rotate(x: np.ndarray, table: np.ndarray) -> np.ndarray:
    """x [T, heads, Dh], rope_table: values i and i + R / 2 are turned together, those from R on stay."""
    half = table.shape[1]
    cos, sin = table[:, None, :, 0], table[:, None, :, 1]
    a, b = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos, x[..., 2 * half :]], axis=-1)


def softmax_rows(q: np.ndarray, keys: np.ndarray, first: int) -> np.ndarray:
    """q [T, H, Dh], keys [S, G, Dh] -> [T, H, S]: the query of token t sees keys 0 .. first + t; H / G heads share a
    key head.
    """
    shared = np.repeat(keys, q.shape[1] // keys.shape[1], axis=1)
    scores = np.einsum("thd,shd->ths", q, shared) / np.sqrt(q.shape[-1])
    seen = np.arange(len(keys)) <= first + np.arange(len(q))[:, None]
    weights = np.where(seen[:, None], np.exp(scores - scores.max(-1, keepdims=True)), 0.0)
    return weights / weights.sum(-1, keepdims=True)


def attention(q: np.ndarray, keys: np.ndarray, values: np.ndarray, first: int) -> np.ndarray:
    """As softmax_rows, values like keys -> [T, H, Dh]."""
    shared = np.repeat(values, q.shape[1] // values.shape[1], axis=1)
    return np.einsum("ths,shd->thd", softmax_rows(q, keys, first), shared)


def causal_conv(x: np.ndarray, weight: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x [T, C], weight [C, 4] whose last tap meets the token itself, state [3, C] the inputs before -> (silu of the
    convolution, the new state).
    """
    past = np.concatenate([state, x])
    y = sum(past[j : j + len(x)] * weight[:, j] for j in range(4))
    return silu(y), past[-3:]


def delta_rule(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, log_decay: np.ndarray, beta: np.ndarray, state: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """q (scaled), k [T, Hk, Dk], v [T, Hv, Dv], log_decay, beta [T, Hv], state [Hv, Dv, Dk] -> (outputs, new state).

    M <- e^log_decay M; u = beta (v - M k); M <- M + u k^T; o = M q; value head h has key head h mod Hk.
    """
    heads = np.arange(v.shape[1]) % k.shape[1]
    outputs = np.empty_like(v)
    for t in range(len(v)):
        qt, kt = q[t, heads], k[t, heads]
        state = state * np.exp(log_decay[t])[:, None, None]
        u = beta[t][:, None] * (v[t] - np.einsum("hvk,hk->hv", state, kt))
        state = state + u[:, :, None] * kt[:, None, :]
        outputs[t] = np.einsum("hvk,hk->hv", state, qt)
    return outputs, state


def pooled(rows: np.ndarray, size: int) -> np.ndarray:
    """The mean of the `size` (odd) neighbours of each value of the last axis, at its ends of those there are."""
    sums = np.concatenate([np.zeros((*rows.shape[:-1], 1)), np.cumsum(rows, axis=-1)], axis=-1)
    at = np.arange(rows.shape[-1])
    begin, end = np.maximum(at - size // 2, 0), np.minimum(at + size // 2 + 1, rows.shape[-1])
    return (sums[..., end] - sums[..., begin]) / (end - begin)


def best_tokens(
    logits: np.ndarray, count: int, seen: np.ndarray, penalty: float, allowed: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(ids, logits) of the greatest, equal ones by rising id, of those `allowed` (bool [V]); the float32 penalty is
    taken off those of `seen`.
    """
    lowered = logits.copy()
    lowered[seen] -= np.float32(penalty)
    ids = np.lexsort((np.arange(len(lowered)), -np.where(allowed, lowered, -np.inf)))[:count]
    return ids, lowered[ids]


def route(logits: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """logits [T, X] -> (ids [T, count] of the largest, the largest first; softmax over those)."""
    ids = np.argsort(-logits, axis=-1, kind="stable")[:, :count]
    powers = np.exp(np.take_along_axis(logits, ids, -1) - logits.max(-1, keepdims=True))
    return ids, powers / powers.sum(-1, keepdims=True)
