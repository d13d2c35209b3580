"""Mistakes with a mixture's experts, each as a swap of one function of the reference, as in mutations.py."""

import numpy as np

from tests.reference import activations, experts
from tests.reference.mutations import Mutation

_rows_of = experts.rows_of


def _one_fewer(picked):
    share = np.array(picked)
    share[:, -1] = 0
    return share / share.sum(-1, keepdims=True)


def _sixteen_rows(choice, expert):
    tokens, slots = _rows_of(choice, expert)
    return tokens[:16], slots[:16]


MUTATIONS = tuple(
    Mutation(title, ((experts, name, wrong),))
    for title, name, wrong in (
        ("shares do not sum to 1", "shares", lambda picked: picked),
        ("equal shares", "shares", lambda picked: np.full_like(picked, 1 / picked.shape[1])),
        ("one expert fewer", "shares", _one_fewer),
        ("shares in another order than the experts", "shares", lambda p: (p / p.sum(-1, keepdims=True))[:, ::-1]),
        ("sigmoid router", "probabilities", activations.sigmoid),
        ("the least probable experts", "chosen", lambda probs, count: np.argsort(probs, -1, "stable")[:, :count]),
        ("the next expert's matrices", "expert_of", lambda number, count: (number + 1) % count),
        ("the router sees the residual stream", "router_input", lambda normed, x: x),
        ("no expert for every token", "together", lambda routed, shared: routed),
        ("that expert not gated", "gated", lambda output, gate: output),
        ("its gate without sigmoid", "gated", lambda output, gate: output * gate),
        ("its gate on the input", "shared_input", lambda normed, gate: normed * activations.sigmoid(gate)),
        ("up before gate where one tensor has both", "halves", lambda both: np.split(both, 2)[::-1]),
        ("rows of both in turns", "halves", lambda both: (both[::2], both[1::2])),
        ("gate and up swapped", "inner", lambda gate, up: activations.swiglu(up, gate)),
        ("share on the expert's input", "expert_input", lambda normed, share: normed * share),
        ("rows beyond an expert's 16th lost", "rows_of", _sixteen_rows),
        ("rows not brought back to their tokens", "place_of", lambda tokens: np.sort(tokens)[::-1]),
    )
)
