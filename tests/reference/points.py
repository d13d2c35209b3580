"""Points of the numpy reference, named as in vkprefill/engine/microscope/names.py, and runs with some changed."""

from collections.abc import Callable, Sequence

import numpy as np

from tests.reference.forward import DeltaState, KVState, ReferenceModel

Change = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (rows [T, ...], which tokens [T]) -> rows


def run(
    model: ReferenceModel,
    token_ids: Sequence[int],
    num_prompt: int,
    positions: Sequence[int] | None = None,
    changes: dict[str, Change] | None = None,
    state_change: Callable[[list, int], None] | None = None,
) -> dict[str, np.ndarray]:
    """Every point of all tokens, float64 [T, ...], attention rows [H, T, S]: the prompt in one call, the others one by
    one. State points [T', Hv, Dk, Dv] are those after each call. state_change(state, token): after a call ended there.
    """
    positions = np.arange(len(token_ids)) if positions is None else np.asarray(positions)
    found: dict[str, list[np.ndarray]] = {}
    state, changes, start = model.new_state(), changes or {}, 0

    def at(name: str, rows: np.ndarray) -> np.ndarray:
        if name in changes:
            rows = changes[name](rows.copy(), np.arange(start, start + len(rows)))
        found.setdefault(name, []).append(rows)
        return rows

    model.at = at
    try:
        for stop in [num_prompt, *range(num_prompt + 1, len(token_ids) + 1)]:
            out = model.forward(token_ids[start:stop], positions[start:stop], state)
            found.setdefault("hook_logits", []).append(out["result_output"])
            if state_change:
                state_change(state, stop - 1)
            for layer, kept in enumerate(state):
                if isinstance(kept, DeltaState):
                    name = f"blocks.{layer}.linear_attn.hook_ssm_state"
                    found.setdefault(name, []).append(kept.memory.transpose(0, 2, 1)[None])
            start = stop
    finally:
        model.at = lambda name, rows: rows
    points = {name: np.concatenate(rows) for name, rows in found.items()}
    for layer, kept in enumerate(state):
        if isinstance(kept, KVState):
            points |= _attention_rows(points, f"blocks.{layer}.attn.hook_")
    return points


def _attention_rows(points: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    queries, keys = points[f"{name}rot_q"], points[f"{name}rot_k"]
    keys = keys.repeat(queries.shape[1] // keys.shape[1], axis=1)
    scores = np.einsum("qhd,shd->hqs", queries, keys) / np.sqrt(queries.shape[-1])
    scores[:, np.arange(len(keys))[None, :] > np.arange(len(queries))[:, None]] = -np.inf
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return {f"{name}attn_scores": scores, f"{name}pattern": powers / powers.sum(-1, keepdims=True)}
