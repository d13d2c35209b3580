"""Gated delta rule: Yang et al. 2024 (Gated Delta Networks), equation 10; chunked form derived from it.

One value head, state M [Dv, Dk], value index first, log decay g <= 0, write strength beta:

    M <- e^g M;   u = beta (v - M k);   M <- M + u k^T;   o = M q / sqrt(Dk)

Value heads are in GGUF order (tiled): head h uses key head h mod Hk. HF and MLX order them by key head:
h div (Hv / Hk).

Arguments of both forms: q, k [T, Hk, Dk] after the l2 norm, v [T, Hv, Dv], log_decay and beta [T, Hv], state
[Hv, Dv, Dk]; they return the outputs [T, Hv, Dv] and the new state.
"""

import numpy as np

from tests.reference import activations


def key_heads(value_head_count: int, key_head_count: int) -> np.ndarray:
    """Key head of each value head, int [Hv]."""
    return np.arange(value_head_count) % key_head_count


def query_scale(key_size: int) -> float:
    return key_size**-0.5


def softplus_alpha(alpha: np.ndarray, dt_bias: np.ndarray) -> np.ndarray:
    """alpha [T, Hv], dt_bias [Hv] -> softplus(alpha + dt_bias): Mamba-2's step size (HF `Qwen3_5GatedDeltaNet`)."""
    return activations.softplus(alpha + dt_bias)


def log_decay(step_size: np.ndarray, ssm_a: np.ndarray) -> np.ndarray:
    """step_size [T, Hv], ssm_a [Hv] -> g; ssm_a is stored as -exp(A_log), so g <= 0."""
    return step_size * ssm_a


def step(state, q, k, v, log_decay, beta):
    """One token, all heads: q, k [Hv, Dk] (q scaled), v [Hv, Dv], log_decay, beta [Hv].

    Returns the output [Hv, Dv] and the new state."""
    state = state * np.exp(log_decay)[:, None, None]
    correction = beta[:, None] * (v - np.matmul(state, k[..., None])[..., 0])
    state = state + correction[:, :, None] * k[:, None, :]
    return np.matmul(state, q[..., None])[..., 0], state


def recurrent(q, k, v, log_decay, beta, state):
    """Token by token, the definition."""
    heads = key_heads(v.shape[1], k.shape[1])
    q, k = q[:, heads] * query_scale(q.shape[-1]), k[:, heads]
    outputs = np.empty_like(v)
    for t in range(len(v)):
        outputs[t], state = step(state, q[t], k[t], v[t], log_decay[t], beta[t])
    return outputs, state


def chunked(q, k, v, log_decay, beta, state, chunk: int = 64):
    """The same in chunks. Within one, with G the inclusive sum of g and D[t, s] = e^(G_t - G_s) for s <= t:

    A = tril(beta_t D[t, s] k_t.k_s, -1);   (I + A) U = beta V - beta e^G K M^T
    O = e^G Q M^T + (Q K^T * D) U;   M <- e^(G_last) M + U^T (e^(G_last - G) K)
    """
    heads = key_heads(v.shape[1], k.shape[1])
    q, k = q[:, heads] * query_scale(q.shape[-1]), k[:, heads]
    outputs, state = np.empty_like(v), state.copy()
    for start in range(0, len(v), chunk):
        part = slice(start, start + chunk)
        for h in range(v.shape[1]):
            qc, kc, vc, b = q[part, h], k[part, h], v[part, h], beta[part, h]
            total = np.cumsum(log_decay[part, h])
            grown = np.exp(total)[:, None]  # decay from the chunk's start
            # only differences with s <= t are exponentiated: e^-G would overflow
            decay = np.tril(np.exp(np.tril(total[:, None] - total[None, :])))
            a = np.tril(b[:, None] * decay * (kc @ kc.T), -1)
            u = np.linalg.solve(np.eye(len(b), dtype=v.dtype) + a, b[:, None] * (vc - grown * (kc @ state[h].T)))
            outputs[part, h] = grown * (qc @ state[h].T) + ((qc @ kc.T) * decay) @ u
            state[h] = grown[-1] * state[h] + u.T @ (np.exp(total[-1] - total)[:, None] * kc)
    return outputs, state
