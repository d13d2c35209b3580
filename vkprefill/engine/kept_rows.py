"""Rows that have run and may yet be taken back: tokens of a few-rows program, until the next one takes them into the
recurrent states.

Keys and values of a row that is not accepted are overwritten by the next. Recurrent states cannot be cut back, so in
memory they are those before the rows accepted last: these wait, with what they were made of kept beside the states, and
the next run applies them on its way through the layer, where the states are read anyway, and stores the result. Its own
rows go on from there without being stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vkprefill.engine.halves import SHORT_RUN
from vkprefill.engine.sizes import Sizes
from vkprefill.engine.step import StepWord
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.program import Program

if TYPE_CHECKING:
    from vkprefill.engine.cache import Cache

NOT_WRITTEN = 0x7FA0_0001  # bits of a signalling NaN, which arithmetic never gives
KEPT = SHORT_RUN  # rows of a run, as in shaders/include/kept_rows.glsl
FEW_ROWS = (1, 2, 4, KEPT)  # that programs of decode are recorded for


def program_rows(count: int) -> int:
    """Rows of the decode program that so many tokens run in."""
    return next(rows for rows in FEW_ROWS if rows >= count)


def kept_layer_size(channels: int, value_heads: int) -> int:
    """Floats that a delta-net layer keeps: raw [KEPT, C], qkv [2 KEPT, C], gates [2 KEPT, Hv, 2]."""
    return KEPT * (3 * channels + 4 * value_heads)


def kept_offsets(channels: int) -> tuple[int, int]:
    """Floats from a layer's first kept one to its qkv, and to its gates."""
    return KEPT * channels, 3 * KEPT * channels


def kept_size(sizes: Sizes) -> int:
    """Floats that a model keeps: all delta-net layers, and, with a multi-token-prediction block, hidden rows
    [KEPT, D].
    """
    c = sizes.config
    hidden = KEPT * c.hidden_size if sizes.block else 0
    return max(4, len(c.linear_layers) * kept_layer_size(c.conv_dim, c.linear_num_value_heads) + hidden)


class KeptRows:
    """Those of the cache whose state is the live one.

    buffer: what the layers keep of them; hidden: of it, the rows after the trunk's last norm, [KEPT, D], None without a
    multi-token-prediction block; waiting: rows that are accepted, the first of the run before; ids, positions: of the
    rows after them, which are undecided, the same lists until anything else runs; aside: the state that has the waiting
    rows is in the pool's undo state, and the live one may be half overwritten.
    """

    def __init__(self, device: Device, sizes: Sizes) -> None:
        config, count = sizes.config, kept_size(sizes)
        self.buffer: Buffer = device.buffer("kept_rows", (count,), kind="kept_rows")
        self.hidden: Buffer | None = None
        if sizes.block:
            shape = KEPT, config.hidden_size
            self.hidden = self.buffer.part("hidden rows", count - KEPT * config.hidden_size, shape)
        self._at = 0  # row of the buffer where the last run's begin: runs take turns
        self.clear()

    def clear(self) -> None:
        """The live state is whole, or nobody's."""
        self.waiting, self.aside = 0, False
        self.drop()

    def drop(self) -> None:
        """What ran last and is not accepted never will be."""
        self.ids: list[int] = []
        self.positions: list[int] = []

    def accept(self, count: int) -> tuple[list[int], list[int]]:
        """Ids and positions of the next rows that ran, which wait from now on with those accepted before."""
        accepted = self.ids[:count], self.positions[:count]
        self.waiting += count
        del self.ids[:count], self.positions[:count]
        return accepted

    def words_of_next(self) -> dict[StepWord, int]:
        """Of the step, for the next run."""
        return {StepWord.WAITING: self.waiting, StepWord.KEPT_ROW: KEPT - self._at}

    def words_of_last(self, waiting: int) -> dict[StepWord, int]:
        """For applying so many of the last run's rows without new ones."""
        return {StepWord.NUM_TOKENS: 0, StepWord.WAITING: waiting, StepWord.KEPT_ROW: KEPT - self._at}

    def run(self, program: Program, logits: Buffer, cache: Cache, ids: list[int], positions: list[int]) -> None:
        """Run a program of rows, which takes in what waits: these rows are to be decided on then.

        logits: what it writes last; cache: the live one. A submission runs whole or not at all, so after an exception
        the logits say whether the program has run. Only between two of its submissions some layers have taken in what
        waits and others not: that leaves the cache broken.
        """
        first = logits.view().reshape(-1)[:1].view(np.uint32)
        first[0] = NOT_WRITTEN
        ran, cache.broken = False, self.waiting > 0  # until it is known what has become of them
        try:
            program.run()
            ran = True
        finally:
            if ran or first[0] != NOT_WRITTEN:
                self._note(ids, positions)
                cache.broken = False
            elif program.num_submissions == 1 and not cache.pool.device.lost:
                cache.broken = False

    def _note(self, ids: list[int], positions: list[int]) -> None:
        """A run has taken in what waited, and these rows are to be decided on."""
        self.waiting, self._at = 0, KEPT - self._at
        self.ids, self.positions = ids, positions
