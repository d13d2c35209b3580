"""The device side of recording and editing: buffers, and the dispatches at the points that are watched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vkprefill.engine import kernels
from vkprefill.engine.capture import RowTap
from vkprefill.engine.kernels.points import SET
from vkprefill.engine.kernels.rows import NO_ROW
from vkprefill.engine.microscope.edits import PlacedEdit
from vkprefill.engine.microscope.names import KEYS, PATTERN, SCORES, Shapes, layer_of, local_name
from vkprefill.engine.points import KIND, Rows
from vkprefill.engine.runner import Runner
from vkprefill.engine.sizes import PAGE
from vkprefill.rounding import round_up
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.program import Program


def row_bytes(runner: Runner, names: Shapes, most: int, num_keys: int) -> int:
    """What a RowTaps takes."""
    stride = round_up(num_keys, PAGE)
    floats = sum(most * math.prod(stride if n == KEYS else n for n in shape) for shape in names.values())
    with_keys = any(KEYS in shape for shape in names.values())
    return 4 * (runner.sizes.rows + floats) + (RowTap.num_bytes(runner, most) if with_keys else 0)


def edit_bytes(runner: Runner, edits: Sequence[PlacedEdit], most: int) -> int:
    """What an EditTaps takes."""
    found = 0
    for placed in edits:
        if not placed.changes_nothing:
            size = most * math.prod(placed.shape) if placed.on_host else placed.values.size
            found += 4 * (runner.sizes.rows + size)
    return found


class RowTaps:
    """A watch that copies the rows of chosen tokens of a run to memory that the host sees.

    names: point -> shape of a token's row; most: tokens of a run that are recorded at most; num_keys: of attention
    rows. A run's tokens are chosen by `choose`, and its rows read by `read`.
    """

    full = True

    def __init__(self, runner: Runner, names: Shapes, most: int, num_keys: int) -> None:
        self._runner, self.names, self.most, self.num_keys = runner, names, most, num_keys
        self.stride = round_up(num_keys, PAGE)
        device = runner.device
        self._rows = device.buffer("recorded tokens", (runner.sizes.rows,), np.uint32, memory="host", kind=KIND)
        with_keys = any(KEYS in shape for shape in names.values())
        self._tap = RowTap(runner, most, KIND) if with_keys else None
        self._staged = {
            name: device.buffer(
                name,
                (most, shape[0], self.stride) if KEYS in shape else (most, math.prod(shape)),
                memory="host",
                kind=KIND,
            )
            for name, shape in names.items()
        }

    def wants(self, name: str) -> bool:
        return name in self.names

    def at(self, p: Program, name: str, rows: Rows) -> None:
        if KEYS in self.names[name]:
            self._tap.record(p, layer_of(name), self._staged[name], softmax=local_name(name) == PATTERN)
        else:
            kernels.record_rows(p, self._rows.part("rows", 0, (p.num_rows,)), rows, self._staged[name])

    def choose(self, tokens: np.ndarray, count: int) -> None:
        """tokens [n], of the `count` tokens of the run that is to begin: the i-th fills row i."""
        rows = np.full(count, NO_ROW, np.uint32)
        rows[tokens] = np.arange(len(tokens))
        self._rows.view()[:count] = rows
        if self._tap is not None:
            self._tap.choose(tokens, range(len(tokens)), self.num_keys)

    def read(self, name: str, count: int, slots: np.ndarray, factor: float) -> np.ndarray:
        """float32 [count, ...] of the tokens chosen last, a copy; slots: of the cache, where they are."""
        staged = self._staged[name].view()[:count]
        if KEYS not in self.names[name]:
            values = staged.reshape(count, *self.names[name])
            return _times(values, factor)
        rows = staged[..., : self.num_keys].copy()
        if local_name(name) == SCORES:
            rows[np.broadcast_to(np.arange(self.num_keys) > slots[:, None, None], rows.shape)] = -np.inf
        return rows

    def free(self) -> None:
        """Freeing twice does nothing."""
        self._rows.free()
        if self._tap is not None:
            self._tap.free()
        for buffer in self._staged.values():
            buffer.free()


def _times(numbers: np.ndarray, factor: float) -> np.ndarray:
    """A copy. What is not finite, or becomes so, goes on as on the device: without a warning."""
    with np.errstate(over="ignore", invalid="ignore"):
        return numbers * np.float32(factor) if factor != 1 else numbers.copy()


@dataclass(frozen=True, eq=False)
class _OnDevice:
    """A placed edit with the rows that change tokens of a run, and the values that change them."""

    placed: PlacedEdit
    rows: Buffer
    values: Buffer


class EditTaps:
    """A watch that changes rows, one dispatch for each edit in the order given; for what is changed on the host two,
    with its work between.
    """

    full = True

    def __init__(self, runner: Runner, edits: Sequence[PlacedEdit], most: int) -> None:
        self._runner, self._first, self._count = runner, 0, 0
        self._edits: dict[str, list[_OnDevice]] = {}
        device = runner.device
        for placed in edits:
            if placed.changes_nothing:
                continue
            rows = device.buffer("edited tokens", (runner.sizes.rows,), np.uint32, memory="host", kind=KIND)
            if placed.on_host:
                size = math.prod(placed.shape)
                values = device.buffer("edit", (most, size), np.uint32, memory="host", kind=KIND)
            else:
                values = device.host_array("edit", placed.values, kind=KIND)
            self._edits.setdefault(placed.name, []).append(_OnDevice(placed, rows, values))

    def __len__(self) -> int:
        return len(self._edits)

    def wants(self, name: str) -> bool:
        return name in self._edits

    def at(self, p: Program, name: str, rows: Rows) -> None:
        for edit in self._edits[name]:
            which, op = edit.rows.part("rows", 0, (p.num_rows,)), edit.placed.op
            if edit.placed.on_host:
                kernels.record_rows(p, which, rows, edit.values)
                p.call(lambda edit=edit, factor=rows.factor: self._rewrite(edit, factor))
                op = SET
            kernels.edit_rows(p, which, edit.values, rows, op)

    def choose(self, first: int, count: int, *, decode: bool) -> None:
        """The run that is to begin has `count` tokens, from `first` of the prompt on."""
        self._first, self._count = first, count
        for edits in self._edits.values():
            for edit in edits:
                rows = np.full(count, NO_ROW, np.uint32)
                if edit.placed.applies(decode=decode):
                    rows = edit.placed.rows(first, count, NO_ROW)
                    if edit.placed.on_host:
                        rows[rows != NO_ROW] = np.arange((rows != NO_ROW).sum())
                edit.rows.view()[:count] = rows

    def choose_last(self) -> None:
        """The last token of the run becomes the only one, as for the head."""
        for edits in self._edits.values():
            for edit in edits:
                rows = edit.rows.view()
                rows[0] = rows[self._count - 1]
        self._first, self._count = self._first + self._count - 1, 1

    def _rewrite(self, edit: _OnDevice, factor: float) -> None:
        """The rows of this run's tokens, changed; numbers that are not keep the device's bits."""
        rows = edit.rows.view()[: self._count]
        (tokens,) = np.nonzero(rows != NO_ROW)
        if not len(tokens):
            return
        slots, words = rows[tokens], edit.values.view()
        there = words[slots]
        given = _times(there.view(np.float32), factor)
        changed = edit.placed.changed(given.reshape(-1, *edit.placed.shape), tokens + self._first).reshape(given.shape)
        kept = changed.view(np.uint32) == given.view(np.uint32)
        words[slots] = np.where(kept, there, _times(changed, 1 / factor).view(np.uint32))

    def free(self) -> None:
        """Freeing twice does nothing."""
        for edits in self._edits.values():
            for edit in edits:
                edit.rows.free()
                edit.values.free()


@dataclass(frozen=True)
class BothTaps:
    """Edits, then what is recorded of them. factors: point -> of its rows, filled as programs are recorded."""

    edits: EditTaps
    rows: RowTaps
    factors: dict[str, float]
    full = True

    def wants(self, name: str) -> bool:
        return self.edits.wants(name) or self.rows.wants(name)

    def at(self, p: Program, name: str, rows: Rows) -> None:
        if self.edits.wants(name):
            self.edits.at(p, name, rows)
        if self.rows.wants(name):
            self.factors[name] = rows.factor
            self.rows.at(p, name, rows)
