"""How fast a model has run in this process."""


class SpeedMeter:
    """Tokens per second of the runs of this process: running means that follow the last runs; None before there are
    any.
    """

    MIN_TOKENS = 64  # of a prefill that says something about speed
    WEIGHT = 0.25  # of the newest run

    def __init__(self) -> None:
        self.prefill_per_s: float | None = None
        self.decode_per_s: float | None = None
        self._first_decode = True

    def prefilled(self, tokens: int, seconds: float) -> None:
        if tokens >= self.MIN_TOKENS:
            self.prefill_per_s = self._mean(self.prefill_per_s, tokens / seconds)

    def decoded(self, seconds: float) -> None:
        if self._first_decode:  # may have compiled pipelines
            self._first_decode = False
        else:
            self.decode_per_s = self._mean(self.decode_per_s, 1 / seconds)

    def _mean(self, old: float | None, new: float) -> float:
        return new if old is None else old + self.WEIGHT * (new - old)
