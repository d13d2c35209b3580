"""Changes of the recurrent state between runs; see Edit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkprefill.engine.cache import Cache
from vkprefill.engine.microscope.edits import PlacedEdit
from vkprefill.engine.microscope.names import layer_of
from vkprefill.engine.runner import Runner


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
            state = cache.recurrent_state(layer)[None]
            cache.set_recurrent_state(layer, edit.changed(state, np.array([token]))[0])
