"""Who has the device: answers in the making take turns with it, a slice each, the one that has had least time next.

A slice is a run of the engine (a chunk of a prompt, a round of decode), or as many as begin within SLICE_S: a change of
turns swaps the live state. An answer that begins is lent HEAD_START_S until its first word: a short request goes before
all others, once the slice in hand is over, and a long one gives back what it was lent. Nobody is passed over for longer
than HEAD_START_S for each that is there, so that short requests that come all the time cannot stop a long one.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

SLICE_S = 0.1
HEAD_START_S = 1.0

_order = itertools.count()


class Turn:
    """An answer's part of the time. waits: it can do nothing before another one had a slice; alone: it is to run when
    no other is there; begun: its first word is said; own_s: seconds that it had; slices: how many those were.
    """

    def __init__(self) -> None:
        self.waits = self.alone = self.begun = False
        self.own_s, self.slices, self.began = 0.0, 0, time.perf_counter()
        self.due = 0.0  # own seconds, and those that it cannot claim any more: the least has the next slice
        self.lent_s = HEAD_START_S
        self.last_ran = self.began
        self.number = next(_order)


class Turns:
    """All turns; can_resume: whether one has what it needs to go on."""

    def __init__(self, can_resume: Callable[[Turn], bool] = lambda turn: True) -> None:
        self._can_resume, self._all = can_resume, list[Turn]()
        self._current: Turn | None = None
        self._since = 0.0

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Turn]:
        return iter(self.in_order())

    def in_order(self) -> Sequence[Turn]:
        """The next one first; of those with equal claims, the one that came last."""
        return sorted(self._all, key=lambda turn: (turn.due, -turn.number))

    def begin(self, turn: Turn) -> None:
        turn.due = min((other.due + other.lent_s for other in self._all), default=0.0) - turn.lent_s
        self._all.append(turn)

    def end(self, turn: Turn) -> None:
        self._all.remove(turn)

    @property
    def one_is_alone(self) -> bool:
        """Whether one waits for all others to end."""
        return any(turn.alone for turn in self._all)

    def next(self) -> Turn:
        """Whose turn it is. Those that cannot run have no claim on the time."""
        together = [turn for turn in self.in_order() if not turn.alone] or [min(self._all, key=lambda t: t.number)]
        ready = [turn for turn in together if not turn.waits] or together
        able = [turn for turn in ready if self._can_resume(turn)] or ready
        for turn in self._all:
            if turn not in able:
                turn.due = max(turn.due, able[0].due)
        longest = min(able, key=lambda turn: turn.last_ran)
        overdue = time.perf_counter() - longest.last_ran > HEAD_START_S * len(self._all)
        return longest if overdue else able[0]

    @contextmanager
    def slice(self, turn: Turn) -> Iterator[None]:
        """A slice of this one runs inside."""
        self._current, self._since = turn, time.perf_counter()
        try:
            yield
        finally:
            turn.last_ran, self._current = time.perf_counter(), None
            spent, given_back = turn.last_ran - self._since, turn.lent_s if turn.begun else 0.0
            turn.own_s, turn.due, turn.slices = turn.own_s + spent, turn.due + spent + given_back, turn.slices + 1
            turn.lent_s -= given_back
            if not turn.waits:
                for other in self._all:
                    other.waits = False

    def clock(self) -> float:
        """Seconds of the one that runs, which stand still while others do; without one, those of time.perf_counter."""
        return time.perf_counter() if self._current is None else self.own_and_wait_s(self._current)[0]

    def own_and_wait_s(self, turn: Turn) -> tuple[float, float]:
        """Seconds since it began that it had, and that others had."""
        now = time.perf_counter()
        own_s = turn.own_s + (now - self._since if turn is self._current else 0.0)
        return own_s, max(0.0, now - turn.began - own_s)

    def slice_is_over(self) -> bool:
        """To be asked between two runs of the engine."""
        return time.perf_counter() - self._since >= SLICE_S
