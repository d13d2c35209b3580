"""Rows of the residual stream of a whole prompt, kept on the device between the layers that read all of it and those
that read a part.
"""

from __future__ import annotations

import numpy as np

from vkprefill.engine import kernels
from vkprefill.engine.kernels.rows import NO_ROW
from vkprefill.engine.scratch import Scratch
from vkprefill.rounding import round_up
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.program import Program

MAX_BYTES = 128 << 20  # of a part: every Vulkan device grants buffers of so many
ROWS = 256  # that a store's size is rounded up to
KEPT_BYTES = 64 << 20  # that stay between prompts


class RowStore:
    """Rows [num, D] in parts of MAX_BYTES at most, written from and read into the rows x[T, D] that a step works on."""

    def __init__(self, device: Device, scratch: Scratch) -> None:
        self._device, self._scratch = device, scratch
        self.num_rows = 0  # that there is room for
        self._part_rows = 0
        self._parts: list[tuple[Buffer, Program, Program]] = []  # with what writes it and what reads it
        self._pairs: Buffer | None = None

    @property
    def num_bytes(self) -> int:
        return store_bytes(self.num_rows, self._scratch.x.shape[1])

    def reserve(self, num_rows: int) -> None:
        """Make room for so many rows; what was in it is lost where there was less. Raises OutOfMemoryError."""
        if num_rows <= self.num_rows:
            return
        self.free()
        device, x = self._device, self._scratch.x
        rows, dim = round_up(num_rows, ROWS), x.shape[1]
        device.require(store_bytes(rows, dim), f"rows of {num_rows} prompt tokens between the layers")
        with device.freed_on_error():
            self._pairs = device.buffer("row pairs", (x.shape[0], 2), np.uint32, memory="host", kind="exchange")
            self._part_rows = min(rows, min(MAX_BYTES, device.info.max_buffer_bytes) // (4 * dim))
            parts = []
            for first in range(0, rows, self._part_rows):
                shape = min(self._part_rows, rows - first), dim
                part = device.buffer("prompt_rows", shape, kind="prompt_rows")
                parts.append((part, self._mover("keep", x, part), self._mover("take", part, x)))
        self._parts, self.num_rows = parts, rows

    def keep(self, first: int, count: int) -> None:
        """The `count` rows of the step that ran become rows `first` and following."""
        self._move(np.arange(first, first + count), writing=True)

    def take(self, rows: np.ndarray) -> None:
        """These rows become those of the step that is to run."""
        self._move(rows, writing=False)

    def free(self) -> None:
        """Freeing twice does nothing; a later use begins anew."""
        parts, self._parts, self.num_rows = self._parts, [], 0
        for part, _, _ in parts:
            part.free()
        if self._pairs is not None:
            self._pairs.free()
            self._pairs = None

    def _mover(self, name: str, x: Buffer, y: Buffer) -> Program:
        p = self._device.program(f"{name} rows", step=self._scratch.step, num_rows=self._scratch.x.shape[0])
        kernels.move_rows(p, self._pairs, x, y)
        return p

    def _move(self, rows: np.ndarray, *, writing: bool) -> None:
        parts, places = rows // self._part_rows, rows % self._part_rows
        here = np.arange(len(rows))
        for i in np.unique(parts):
            source, target = (here, places) if writing else (places, here)
            self._pairs.view()[: len(rows)] = np.stack([np.where(parts == i, source, NO_ROW), target], axis=-1)
            self._parts[i][1 if writing else 2].run()


def store_bytes(num_rows: int, hidden_size: int) -> int:
    """Of the rows of a prompt's tokens."""
    return round_up(num_rows, ROWS) * hidden_size * 4
