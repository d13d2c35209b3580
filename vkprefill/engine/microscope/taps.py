"""The device side of recording and editing: buffers, and the dispatches at the points that are watched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vkprefill.engine import kernels
from vkprefill.engine.capture import RowTap
from vkprefill.engine.kernels.points import ADD, SET
from vkprefill.engine.kernels.rows import NO_ROW
from vkprefill.engine.microscope.edits import KEPT_BITS, PlacedEdit
from vkprefill.engine.microscope.names import KEYS, PATTERN, SCORES, Shapes, layer_of, local_name
from vkprefill.engine.points import KIND, Rows
from vkprefill.engine.runner import Runner
from vkprefill.engine.sizes import PAGE
from vkprefill.errors import RequestError
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
            size = placed.values.size if placed.edit.call is None else most * math.prod(placed.shape)
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
            return values * np.float32(factor) if factor != 1 else values.copy()
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


@dataclass(frozen=True, eq=False)
class _OnDevice:
    """A placed edit with the rows that change tokens of a run, and the values that change them."""

    placed: PlacedEdit
    rows: Buffer
    values: Buffer


class EditTaps:
    """A watch that changes rows, one dispatch for each edit in the order given; for a function of the caller's two,
    with the host's work between.
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
            if placed.edit.call is None:
                values = device.host_array("edit", placed.values, kind=KIND)
            else:
                size = math.prod(placed.shape)
                values = device.buffer("edit", (most, size), np.uint32, memory="host", kind=KIND)
            self._edits.setdefault(placed.name, []).append(_OnDevice(placed, rows, values))

    def __len__(self) -> int:
        return len(self._edits)

    def wants(self, name: str) -> bool:
        return name in self._edits

    def at(self, p: Program, name: str, rows: Rows) -> None:
        for edit in self._edits[name]:
            which = edit.rows.part("rows", 0, (p.num_rows,))
            if edit.placed.edit.call is not None:
                kernels.record_rows(p, which, rows, edit.values)
                p.call(lambda edit=edit, factor=rows.factor: self._rewrite(edit, factor))
            elif rows.factor != 1 and edit.placed.op in (ADD, SET):
                self._scale(edit, 1 / rows.factor)
            kernels.edit_rows(p, which, edit.values, rows, edit.placed.op)

    def choose(self, first: int, count: int, *, decode: bool) -> None:
        """The run that is to begin has `count` tokens, from `first` of the prompt on."""
        self._first, self._count = first, count
        for edits in self._edits.values():
            for edit in edits:
                rows = np.full(count, NO_ROW, np.uint32)
                if edit.placed.applies(decode=decode):
                    rows = edit.placed.rows(first, count, NO_ROW)
                    if edit.placed.edit.call is not None:
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
        """The rows of this run's tokens, as the caller's function leaves them."""
        rows = edit.rows.view()[: self._count]
        (tokens,) = np.nonzero(rows != NO_ROW)
        if not len(tokens):
            return
        slots, shape = rows[tokens], (len(tokens), *edit.placed.shape)
        words = edit.values.view()
        given = words[slots].view(np.float32).reshape(shape) * np.float32(factor)
        returned = edit.placed.edit.call(given, tokens + self._first)
        changed = given if returned is None else np.asarray(returned)
        if changed.shape != shape or changed.dtype.kind not in "fiu":
            raise RequestError(
                f"edit: call: of {edit.placed.name}: it returned {changed.dtype} of shape {list(changed.shape)}, "
                f"wanted numbers of {list(shape)}"
            )
        values = np.ascontiguousarray(changed / factor if factor != 1 else changed, np.float32)
        words[slots] = values.reshape(len(tokens), -1).view(np.uint32)

    @staticmethod
    def _scale(edit: _OnDevice, factor: float) -> None:
        """From numbers of the point to those of its buffer."""
        given = edit.placed.values
        numbers = (given.view(np.float32) * np.float32(factor)).view(np.uint32)
        edit.values.view()[...] = np.where(given == KEPT_BITS, KEPT_BITS, numbers)

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
