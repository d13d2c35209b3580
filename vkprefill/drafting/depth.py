"""How many tokens a draft should have: as many as pay, by what rounds have taken and what was accepted.

A round runs the last token and n drafted ones, and takes time(n), drafting included. With a_i the share of i-th drafted
tokens that were accepted after those before them, it gives 1 + a_1 + a_1 a_2 + ... tokens. Their quotient is the speed
of n; n = 0 is plain decoding. Times are measured, and on a busy machine wrong: no round is held to be faster than a
plain one with LEAST_COST for each drafted token, so that what is never accepted is given up by counts alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import accumulate
from operator import mul
from statistics import median

TIMES = 5  # the median of the last ones counts: neither a pause of the machine nor a past context
LEAST_WEIGHT = 1 / 16  # of the newest observation in a share; the first ones weigh more
TRIAL_WEIGHT = 1 / 2
MARGIN = 1.01  # by which another depth must be faster
LEAST_GAIN = 1.03  # of drafts over none: below that a run of misses costs more than they bring
LEAST_COST = 0.02  # of a drafted token's row, in plain rounds: weights are read once for all rows, sums are each one's
FIRST_PROBE, PROBE = 2, 256  # rounds with drafts after which a plain one is timed: for the first time, and again
FIRST_WAIT, MOST_WAIT = 96, 256  # tokens at a lowered depth before the whole one is tried again


class RoundTime:
    """Seconds of rounds of one kind. The first may have compiled pipelines and is not counted."""

    def __init__(self) -> None:
        self._first = True
        self._last: deque[float] = deque(maxlen=TIMES)

    def add(self, seconds: float) -> None:
        if self._first:
            self._first = False
        else:
            self._last.append(seconds)

    @property
    def seconds(self) -> float | None:
        return median(self._last) if self._last else None


class Share:
    """How often something was accepted lately; 1 before it was tried."""

    def __init__(self) -> None:
        self.value, self.tries = 1.0, 0

    def add(self, accepted: bool, weight: float) -> None:
        self.tries += 1
        self.value += max(weight, 1 / (self.tries + 1)) * (accepted - self.value)


class Depth:
    """Begins at the most and lowers by measurement only; later it tries again. For all answers of a model in turn.

    most: tokens of a draft; least: of one that is not dropped; adaptive: False for always the most.
    """

    def __init__(self, most: int, least: int = 1, adaptive: bool = True) -> None:
        self._most, self._adaptive = most, adaptive
        self._choices = [0, *range(max(1, least), most + 1)]
        self._times = [RoundTime() for _ in range(most + 1)]
        self._shares = [Share() for _ in range(most)]
        self.depth = most
        self._without_plain = 0  # rounds
        self._lowered_for, self._wait = 0, FIRST_WAIT  # tokens

    def choose(self) -> int:
        """Tokens to draft in the next round."""
        if not self._adaptive:
            return self._most
        if self.depth and self._without_plain >= (FIRST_PROBE if self._times[0].seconds is None else PROBE):
            return 0
        return self._most if self._trial_due else self.depth

    def note(self, drafted: int, accepted: int, seconds: float) -> None:
        """A round has ended: of so many drafted tokens so many were accepted."""
        trial = self._trial_due and drafted > 0
        self._times[drafted].add(seconds)
        for i, share in enumerate(self._shares[: min(drafted, accepted + 1)]):
            share.add(i < accepted, TRIAL_WEIGHT if trial else LEAST_WEIGHT)
        self._without_plain += 1
        if drafted == 0 and self._times[0].seconds is not None:
            self._without_plain = 0
        self._lowered_for += accepted + 1
        before = self.depth
        speeds = {n: speed for n in self._choices if (speed := self._speed(n)) is not None}
        if 0 in speeds:
            speeds[0] *= LEAST_GAIN
        best = max(speeds, key=speeds.get, default=before)
        if before in speeds and speeds[best] > MARGIN * speeds[before]:
            self.depth = best
        if self.depth > before or self.depth == self._most:
            self._lowered_for, self._wait = 0, FIRST_WAIT
        elif trial:
            self._lowered_for, self._wait = 0, min(2 * self._wait, MOST_WAIT)

    @property
    def _trial_due(self) -> bool:
        return self.depth < self._most and self._lowered_for >= self._wait

    def _speed(self, n: int) -> float | None:
        """Tokens per second; None where nothing says how long a round would take."""
        seconds = self._seconds(n)
        return None if seconds is None else (1 + sum(accumulate(self._accepted(n), mul))) / seconds

    def _accepted(self, n: int) -> Iterator[float]:
        """Shares of the first n drafted tokens; one that was never tried does as well as the one before it."""
        last = 1.0
        for share in self._shares[:n]:
            last = share.value if share.tries else last
            yield last

    def _seconds(self, n: int) -> float | None:
        """Of a round; between two that were timed on the line between them, and never less than can be."""
        known = {k: time.seconds for k, time in enumerate(self._times) if time.seconds is not None}
        least = known[0] * (1 + LEAST_COST * n) if 0 in known else None
        below, above = max((k for k in known if k <= n), default=None), min((k for k in known if k >= n), default=None)
        if below is None or above is None:
            return least
        part = (n - below) / (above - below) if above > below else 0
        return max(known[below] + part * (known[above] - known[below]), least or 0.0)
