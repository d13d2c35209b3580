"""How fast a model has run in this process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable


class SpeedMeter:
    """Tokens per second of the runs of this process: running means that follow the last runs; None before there are
    any.

    Runs of other programs than the plain ones, of fewer layers or with more work in them, have meters of their own: see
    `of`. The first run may have compiled pipelines and is not counted.
    """

    WEIGHT = 0.25  # of the newest run
    MAX_KINDS = 16

    def __init__(self, chunk: int) -> None:
        """chunk: tokens of a step of prefill; a shorter run says little about speed and is not counted."""
        self.chunk = chunk
        self.prefill_per_s: float | None = None
        self.decode_per_s: float | None = None
        self._first_prefill = self._first_decode = True
        self._kinds: OrderedDict[Hashable, SpeedMeter] = OrderedDict()

    def of(self, kind: Hashable) -> SpeedMeter:
        """The meter of other programs; those of the kinds asked for last are kept."""
        meter = self._kinds.pop(kind, None) or SpeedMeter(self.chunk)
        self._kinds[kind] = meter
        if len(self._kinds) > self.MAX_KINDS:
            self._kinds.popitem(last=False)
        return meter

    def prefilled(self, tokens: int, seconds: float) -> None:
        if tokens < self.chunk:
            return
        if self._first_prefill:
            self._first_prefill = False
        else:
            self.prefill_per_s = self._mean(self.prefill_per_s, tokens / seconds)

    def decoded(self, seconds: float) -> None:
        if self._first_decode:
            self._first_decode = False
        else:
            self.decode_per_s = self._mean(self.decode_per_s, 1 / seconds)

    def _mean(self, old: float | None, new: float) -> float:
        return new if old is None else old + self.WEIGHT * (new - old)
