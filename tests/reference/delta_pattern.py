"""Rows of a delta-net head, all at once, from the chunked form of delta_rule.py with one chunk of all tokens:

    O = e^G Q M^T + (Q K^T * D) U,   (I + A) U = beta V - beta e^G K M^T

so with L = (Q K^T * D) (I + A)^-1 the output of token t is sum_s P[t, s] v_s + M w_t, where

    P = L diag(beta),   w_t = e^G_t q_t - sum_s P[t, s] e^G_s k_s
"""

from collections.abc import Sequence

import numpy as np

from tests.reference.delta_rule import key_heads, query_scale


def rows(
    q: np.ndarray, k: np.ndarray, log_decay: np.ndarray, beta: np.ndarray, queries: Sequence[int], start: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """q, k [T, Hk, Dk], log_decay, beta [T, Hv], tokens `queries` [Q], none before `start` -> P [Hv, Q, T], 0 before
    token `start` and after the query; w [Hv, Q, Dk], what is left of the queries for the state before token `start`.
    """
    heads, size, chosen = key_heads(beta.shape[1], k.shape[1]), k.shape[-1], np.asarray(queries) - start
    found = np.zeros((len(heads), len(queries), len(k)))
    left = np.empty((len(heads), len(queries), size))
    for h, head in enumerate(heads):
        keys, asked, b = k[start:, head], q[start:, head] * query_scale(size), beta[start:, h]
        total = np.cumsum(log_decay[start:, h])
        decay = np.tril(np.exp(np.tril(total[:, None] - total[None, :])))
        a = np.tril(b[:, None] * decay * (keys @ keys.T), -1)
        scores = (asked @ keys.T * decay)[chosen]
        pattern = np.linalg.solve((np.eye(len(b)) + a).T, scores.T).T * b
        found[h, :, start:] = pattern
        left[h] = np.exp(total)[chosen, None] * asked[chosen] - pattern @ (np.exp(total)[:, None] * keys)
    return found, left
