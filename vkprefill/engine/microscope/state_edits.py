"""Changes of the recurrent state between runs; see Edit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkprefill.engine.cache import Cache
from vkprefill.engine.kernels.points import ADD, SCALE
from vkprefill.engine.microscope.edits import KEPT_BITS, PlacedEdit
from vkprefill.engine.microscope.names import layer_of
from vkprefill.engine.runner import Runner
from vkprefill.errors import RequestError


class StateEdits:
    """Those edits whose point is a state, [Hv, Dk, Dv]: what it is after a token, for the tokens that follow."""

    def __init__(self, runner: Runner, edits: Sequence[PlacedEdit]) -> None:
        self._runner = runner
        self._edits = [edit for edit in edits if not edit.changes_nothing]

    def ends(self, num_tokens: int, *, decode: bool) -> set[int]:
        """Tokens that runs of a prompt must end with."""
        wanted: set[int] = set()
        for edit in self._edits:
            if edit.applies(decode=decode):
                tokens = range(num_tokens) if edit.row_of is None else edit.row_of
                wanted |= {token for token in tokens if token < num_tokens}
        return wanted

    def apply(self, cache: Cache, token: int, *, decode: bool) -> None:
        """After a run that ended with this token."""
        for edit in self._edits:
            if not edit.applies(decode=decode) or edit.row_of is not None and token not in edit.row_of:
                continue
            layer = layer_of(edit.name)
            cache.set_recurrent_state(layer, self._changed(edit, cache.recurrent_state(layer), token))

    def _changed(self, edit: PlacedEdit, state: np.ndarray, token: int) -> np.ndarray:
        if edit.edit.call is not None:
            returned = edit.edit.call(state[None], np.array([token]))
            changed = state if returned is None else np.asarray(returned)[0]
            if changed.shape != state.shape:
                raise RequestError(
                    f"edit: call: of {edit.name}: it returned shape {list(changed.shape)}, wanted {list(state.shape)}"
                )
            return changed
        bits = edit.values[0 if edit.row_of is None else edit.row_of[token]].reshape(state.shape)
        number = bits.view(np.float32)
        with np.errstate(invalid="ignore"):
            changed = state + number if edit.op == ADD else state * number if edit.op == SCALE else number
        return np.where(bits == KEPT_BITS, state, changed)
