"""Some of a work of the engine between the steps of another, which has the device meanwhile."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from vkprefill.work import Work

Clock = Callable[[], float]
"""Seconds that only grow."""


class Slices:
    """Steps of `work` beside other work, which gets what `share` (0 to 1) of the time leaves. done: there are no more
    steps.

    A step is never cut short, so its share is kept to over time: after a long step the other work goes first until it
    has had its due.
    """

    def __init__(self, work: Work[None], share: float, clock: Clock = time.perf_counter) -> None:
        self._work, self._clock = work, clock
        self._per_second = share / (1 - share) if share < 1 else 0.0  # of the other work
        self._due = 0.0 if share < 1 else math.inf  # seconds; below 0 after a step that took more
        self.start()
        self.done = False

    def start(self) -> None:
        """The other work begins now: what came before is not of its time."""
        self._since = self._clock()

    def take_share(self) -> None:
        """To be called between two steps of the other work: takes as many as are due."""
        now = self._clock()
        self._due += (now - self._since) * self._per_second
        while self._due > 0 and self.step():
            before, now = now, self._clock()
            self._due -= now - before
        self.start()

    def step(self) -> bool:
        """Take one, whatever is due. False where there is none."""
        if not self.done:
            self.done = True  # also where the step fails
            for _ in self._work:
                self.done = False
                break
        return not self.done

    def close(self) -> None:
        """Take no more."""
        self.done = True
        self._work.close()
