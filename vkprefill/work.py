"""Work of the engine in slices, so that several conversations can have the device in turns.

Work is a generator. From one of its yields to the next it makes a bounded run of the engine, and at a Pause anything
else may run on the same models. Whoever closes it leaves its caches as the last slice did.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import closing
from enum import Enum
from typing import TypeVar

T = TypeVar("T")


class Pause(Enum):
    """SLICE: a slice is over; WAITS: nothing can be done before other work has had a slice."""

    SLICE = "slice"
    WAITS = "waits"


Work = Generator[Pause, None, T]


def whole(work: Work[T]) -> T:
    """Take all slices at once; what the work returns."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


class Spent:
    """ms: that went by inside it, a context manager, and in the slices of work, without what runs between them."""

    def __init__(self) -> None:
        self.ms = 0.0

    def __enter__(self) -> Spent:
        self._since = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.ms += (time.perf_counter() - self._since) * 1e3

    def on(self, work: Work[T]) -> Work[T]:
        """The same work, its time noted."""
        with closing(work):
            while True:
                with self:
                    try:
                        pause = next(work)
                    except StopIteration as end:
                        return end.value
                yield pause


def no_work() -> Work[None]:
    yield from ()


class OneAtATime:
    """What one work at a time may have, for more than a slice."""

    def __init__(self) -> None:
        self._holder: object | None = None

    @property
    def taken(self) -> bool:
        return self._holder is not None

    def take(self, holder: object) -> Work[None]:
        while self._holder is not None:
            yield Pause.WAITS
        self._holder = holder

    def give_back(self, holder: object) -> None:
        """Does nothing where it is not this one's."""
        if self._holder is holder:
            self._holder = None


def without_pauses(items: Generator[T | Pause, None, None]) -> Iterator[T]:
    """The same, for whoever runs nothing else meanwhile."""
    with closing(items):
        for item in items:
            if not isinstance(item, Pause):
                yield item
