"""A prompt in two parts, on numpy: layers up to one read all of it, the others the tokens that are kept."""

from collections.abc import Sequence

import numpy as np

from tests.reference.forward import ReferenceModel, State


def forward_split(
    model: ReferenceModel,
    token_ids: Sequence[int],
    positions: Sequence[int],
    kept: Sequence[int],
    split: int,
    state: State,
) -> dict[str, np.ndarray]:
    """token_ids, positions int [T]; kept: indices of tokens that the layers after `split` run; changes `state`.
    Returns the intermediates, those of late layers of the kept tokens only.
    """
    positions, kept = np.asarray(positions, np.int64), np.asarray(kept)
    x, out = model.weights["token_embd.weight"][np.asarray(token_ids)], {}
    for i, recurrent in enumerate(model.recurrent):
        normed = model._norm(x, f"blk.{i}.attn_norm")
        if recurrent:
            mixed = model._delta_net(normed, state[i], i, out)
        else:
            mixed = model._attention(normed, positions, state[i], i, out)
        x = model._residual_mlp(x, mixed, i, out)
        if i == split:
            x, positions = x[kept], positions[kept]
    out["result_norm"] = model._norm(x, "output_norm")
    out["result_output"] = model._head(out["result_norm"])
    return out
