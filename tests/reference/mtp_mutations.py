"""Mistakes with the multi-token-prediction block, each as a swap of one function of the reference, as in mutations.py.

IN_THE_BLOCK: seen in the block's logits or in its chains of drafts; IN_ROUNDS: in whole rounds of drafting and
verification, where they change rounds, text, a round's first logits or the state at the end.
"""

import numpy as np

from tests.reference import mtp, norm
from tests.reference.mutations import Mutation

_normed_halves, _count_accepted, _rows_before = mtp.normed_halves, mtp.count_accepted, mtp.rows_before


def _shifted_twice(waiting, rows):
    return _rows_before(np.zeros_like(waiting), _rows_before(waiting, rows))


def _norms_swapped(embedded, hidden, enorm, hnorm, eps):
    return _normed_halves(embedded, hidden, hnorm, enorm, eps)


def _hidden_not_normed(embedded, hidden, enorm, hnorm, eps):
    return norm.rms_norm(embedded, enorm, eps), hidden


def _embedded_not_normed(embedded, hidden, enorm, hnorm, eps):
    return embedded, norm.rms_norm(hidden, hnorm, eps)


def _last_layer(arrays):
    return max((name for name in arrays if name.startswith("l_out-")), key=lambda name: int(name.split("-")[1]))


def _before_the_head_norm(step, before):
    return next(rows for name, rows in step.items() if name.startswith("mtp_post_ffn-"))[0]


def _empty(state):
    return type(state)(state.keys[:0], state.values[:0], state.positions[:0])


def _conv_not_taken_back(before, after):
    for old, new in zip(before, after, strict=True):
        if hasattr(old, "conv"):
            old.conv = new.conv
    return before


def _over_a_mismatch(drafts, best):
    """One that the trunk would not have taken is passed over when the next one matches again."""
    accepted = _count_accepted(drafts, best)
    matches = [draft == wanted for draft, wanted in zip(drafts, best, strict=False)]
    return len(matches) - matches[::-1].index(True) if True in matches else accepted


IN_THE_BLOCK = (
    Mutation("hidden row first, embedding second", ((mtp, "joined", lambda e, h: np.concatenate([h, e], axis=-1)),)),
    Mutation("token paired with its own row", ((mtp, "rows_before", lambda waiting, rows: rows),)),
    Mutation("token paired with the row two before", ((mtp, "rows_before", _shifted_twice),)),
    Mutation("trunk's row before output_norm", ((mtp, "rows_of", lambda trunk: trunk[_last_layer(trunk)]),)),
    Mutation("chain's row before the head norm", ((mtp, "next_hidden", _before_the_head_norm),)),
    Mutation("chain keeps the trunk's row", ((mtp, "next_hidden", lambda step, before: before),)),
    Mutation("chain's positions stand still", ((mtp, "next_position", lambda position: position),)),
    Mutation("first row not zero", ((mtp, "first_row", np.ones),)),
    Mutation("waiting row lost between calls", ((mtp, "waiting_after", lambda rows: np.zeros_like(rows[-1])),)),
    Mutation("block at the position of its hidden row", ((mtp, "position_of", lambda p: np.maximum(p - 1, 0)),)),
    Mutation("prompt not run through the block", ((mtp, "filled", _empty),)),
    Mutation("enorm and hnorm swapped", ((mtp, "normed_halves", _norms_swapped),)),
    Mutation("hidden row not normed", ((mtp, "normed_halves", _hidden_not_normed),)),
    Mutation("embedding not normed", ((mtp, "normed_halves", _embedded_not_normed),)),
    Mutation("residual from the embedding", ((mtp, "residual_start", lambda projected, embedded: embedded),)),
    Mutation("optional tensors ignored", ((mtp, "optional", lambda weights, own, trunk: trunk),)),
)
IN_ROUNDS = (
    Mutation("drafts stay in the block's cache", ((mtp, "without_drafts", lambda before, after: after),)),
    Mutation("trunk's state not taken back", ((mtp, "taken_back", lambda before, after: after),)),
    Mutation("convolution's rows not taken back", ((mtp, "taken_back", _conv_not_taken_back),)),
    Mutation("acceptance counted after a mismatch", ((mtp, "count_accepted", _over_a_mismatch),)),
    Mutation("one accepted draft too many", ((mtp, "rows_kept", lambda accepted, rows: min(accepted + 2, rows)),)),
    Mutation("waiting row of the last row, not the last accepted", ((mtp, "last_kept", lambda rows, kept: rows[-1]),)),
)
