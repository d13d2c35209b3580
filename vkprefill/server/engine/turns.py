"""Who has the device: answers in the making take turns with it, a slice each, the one that has had least time next.

A slice is a run of the engine (a chunk of a prompt, a round of decode), or as many as begin within SLICE_S: a change of
turns swaps the live state. An answer that begins is lent HEAD_START_S, which it gives back with its first word, or when
it has had as much: a short request goes before all others, once the slice in hand is over, also beside a prompt that is
still read. Nobody is passed over for longer than HEAD_START_S for each that is there, so that short requests that come
all the time cannot stop a long one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter

SLICE_S = 0.1
HEAD_START_S = 1.0


class Turn:
    """An answer's part of the time. waits: it can do nothing before another one had a slice; alone: it is to run when
    no other is there; begun: its first word is said; own_s: seconds that it had; slices: how many those were.
    """

    def __init__(self) -> None:
        self.waits = self.alone = self.begun = False
        self.own_s, self.slices, self.began = 0.0, 0, perf_counter()
        self.due = 0.0  # own seconds, and those that it cannot claim any more: the least has the next slice
        self.lent_s = HEAD_START_S
        self.last_ran = self.began


class Turns:
    """All turns; can_resume: whether one has what it needs to go on."""

    def __init__(self, can_resume: Callable[[Turn], bool] = lambda turn: True) -> None:
        self._can_resume, self._all = can_resume, list[Turn]()  # in the order they came
        self._current: Turn | None = None
        self._since = 0.0

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Turn]:
        """The next one first; of those with equal claims, the one that came last."""
        return iter(sorted(reversed(self._all), key=lambda turn: turn.due))

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
        together = [turn for turn in self if not turn.alone] or self._all[:1]
        ready = [turn for turn in together if not turn.waits] or together
        able = [turn for turn in ready if self._can_resume(turn)] or ready
        for turn in self._all:
            if turn not in able:
                turn.due = max(turn.due, able[0].due)
        longest = min(able, key=lambda turn: turn.last_ran)
        overdue = perf_counter() - longest.last_ran > HEAD_START_S * len(self._all)
        return longest if overdue else able[0]

    @contextmanager
    def slice(self, turn: Turn) -> Iterator[None]:
        """A slice of this one runs inside."""
        self._current, self._since = turn, perf_counter()
        try:
            yield
        finally:
            turn.last_ran, self._current = perf_counter(), None
            spent = turn.last_ran - self._since
            turn.slices += 1
            turn.own_s += spent
            turn.due += spent
            if turn.begun or turn.own_s >= HEAD_START_S:
                turn.due += turn.lent_s
                turn.lent_s = 0.0
            if not turn.waits:
                for other in self._all:
                    other.waits = False

    def clock(self) -> float:
        """Seconds of the one that runs, which stand still while others do; without one, those of perf_counter."""
        return perf_counter() if self._current is None else self.own_and_wait_s(self._current)[0]

    def own_and_wait_s(self, turn: Turn) -> tuple[float, float]:
        """Seconds since it began that it had, and that others had."""
        now = perf_counter()
        own_s = turn.own_s + (now - self._since if turn is self._current else 0.0)
        return own_s, max(0.0, now - turn.began - own_s)

    def slice_is_over(self) -> bool:
        """To be asked between two runs of the engine."""
        return perf_counter() - self._since >= SLICE_S
