"""Kernels timed on the device, in the submissions that the product makes.

A mark stands at the beginning of a submission and after each dispatch: the time when all before it has ended. So a
dispatch counts from the end of the one before, and one that runs beside it has only what it takes longer. Each program
that is made while a Recording is on carries marks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType

POOL_MARKS = 512


@dataclass(frozen=True)
class Dispatch:
    """Of a program: its label, shader and grid, the number of its submission, and of the mark at its end."""

    label: str
    shader: str
    grid: tuple[int, int, int]
    submission: int
    mark: int


@dataclass(frozen=True)
class Span:
    """A dispatch of a run, as in Dispatch; begin and end in ns on the device."""

    label: str
    shader: str
    grid: tuple[int, int, int]
    submission: int
    begin_ns: float
    end_ns: float

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.begin_ns) / 1e9


@dataclass(frozen=True)
class Run:
    """One run of a program: seconds by the CPU's clock, its dispatches, and the marks' times in ns on the device."""

    program: str
    seconds: float
    dispatches: tuple[Dispatch, ...]
    marks_ns: tuple[float, ...] = field(repr=False)

    @property
    def spans(self) -> list[Span]:
        """The dispatches in order, with their times."""
        return [
            Span(d.label, d.shader, d.grid, d.submission, self.marks_ns[d.mark - 1], self.marks_ns[d.mark])
            for d in self.dispatches
        ]


@dataclass
class Recording:
    """The runs of all programs that were made while it was on. native: the companion, context: its open device."""

    native: ModuleType
    context: object
    runs: list[Run] = field(default_factory=list)
    _first_tick: int | None = None

    def nanoseconds(self, ticks: Sequence[int]) -> tuple[float, ...]:
        """Since the first mark of the recording; the device's counter may begin anew in between."""
        if self._first_tick is None:
            self._first_tick = ticks[0]
        mask = (1 << self.context.tick_bits) - 1
        return tuple(((tick - self._first_tick) & mask) * self.context.tick_ns for tick in ticks)


class Marks:
    """The marks of one program."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._pools: list[object] = []
        self._count = 0
        self._dispatches: tuple[Dispatch, ...] = ()  # the runs so far share it
        self._submissions = 0

    def begin_submission(self, sequence) -> None:
        self._submissions += 1
        self._mark(sequence)

    def end_dispatch(self, sequence, label: str, shader: str, grid: tuple[int, int, int]) -> None:
        self._dispatches += (Dispatch(label, shader, grid, self._submissions - 1, self._count),)
        self._mark(sequence)

    def _mark(self, sequence) -> None:
        native, place = self._recording.native, self._count % POOL_MARKS
        if place == 0:
            self._pools.append(native.Timestamps(self._recording.context, POOL_MARKS))
        sequence.record(native.Mark(self._pools[-1], place))
        self._count += 1

    @contextmanager
    def run(self, program: str) -> Iterator[None]:
        """Around one run of all submissions: its times go to the recording."""
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        ticks: list[int] = []
        for pool in self._pools:
            ticks += pool.read(min(POOL_MARKS, self._count - len(ticks)))
        self._recording.runs.append(Run(program, seconds, self._dispatches, self._recording.nanoseconds(ticks)))
