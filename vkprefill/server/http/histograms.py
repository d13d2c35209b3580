"""Histograms in Prometheus' text format."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

# From an answer out of the cache to one that --timeout ends.
SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
# From a large model on a CPU to the prefill of a small one on a graphics card.
TOKENS_PER_SECOND = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)


class Histogram:
    """How many values were at most each of the bounds, which ascend."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)  # of values above the bound before; the last: above all
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self) -> Iterator[tuple[str, float]]:
        """What comes after the name, and the value."""
        total = 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            total += count
            yield f'_bucket{{le="{bound}"}}', total
        yield "_sum", self._sum
        yield "_count", total
