"""Named points of a forward pass: what layers announce as their programs are recorded, to whoever watches.

A program without a watch has the dispatches it would have if nothing were announced.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.program import Program

KIND = "points"  # in the device's accounts: what reads and changes them


@dataclass(frozen=True)
class Rows:
    """Where the rows of a point lie: number [t, h, i] is word offset + t row_stride + h head_stride + i of the buffer.

    kept: rows of a run start at the step's KEPT_ROW, not at 0; factor: what the numbers of the point are those of the
    buffer times.
    """

    buffer: Buffer
    heads: int
    width: int
    row_stride: int
    head_stride: int
    offset: int = 0
    kept: bool = False
    factor: float = 1.0

    def part(self, offset: int, heads: int, width: int, head_stride: int | None = None, factor: float = 1.0) -> Rows:
        """Other heads of the same rows, from `offset` of a row on."""
        stride = width if head_stride is None else head_stride
        return replace(self, offset=self.offset + offset, heads=heads, width=width, head_stride=stride, factor=factor)


class Watch(Protocol):
    """Looks at points, and may change them, by dispatches of its own.

    full: products of prefill are to be of float32, so that every point is a buffer of float32.
    """

    full: bool

    def wants(self, name: str) -> bool:
        """Whether it looks at this point; some come at the cost of a further dispatch."""

    def at(self, p: Program, name: str, rows: Rows) -> None:
        """From here on, until it is written again, the point is what these rows hold."""


@dataclass(frozen=True)
class InTurn:
    """Two watches: the second sees what the first leaves."""

    first: Watch
    second: Watch

    @property
    def full(self) -> bool:
        return self.first.full or self.second.full

    def wants(self, name: str) -> bool:
        return self.first.wants(name) or self.second.wants(name)

    def at(self, p: Program, name: str, rows: Rows) -> None:
        for watch in (self.first, self.second):
            if watch.wants(name):
                watch.at(p, name, rows)


def whole_rows(buffer: Buffer, heads: int = 1) -> Rows:
    """All of a buffer [T, N], as `heads` of N / heads each."""
    width = buffer.shape[1] // heads
    return Rows(buffer, heads, width, buffer.shape[1], width, buffer.offset)


def wanted(p: Program, *names: str) -> bool:
    """Whether anyone looks at one of these points."""
    return p.watch is not None and any(p.watch.wants(name) for name in names)


def announce(p: Program, name: str, rows: Rows) -> None:
    """Tell whoever watches."""
    if wanted(p, name):
        p.watch.at(p, name, rows)
