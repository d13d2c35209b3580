"""Texts that end an answer, found also where they are spread over several tokens."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Feed it the answer piece by piece; it gives back what is sure to stand before any stop text."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """The text that may be shown now. `found` is set once a stop text is complete; nothing after it counts."""
        if self.found is not None:
            return ""
        text = self._held + text
        ends = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            at, self.found = min(ends, key=lambda end: end[0])
            self._held = ""
            return text[:at]
        held = max((held_length(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    @property
    def holds(self) -> bool:
        """Whether text is kept back."""
        return bool(self._held)

    def finish(self) -> str:
        """What was kept back: the answer ended without a stop text."""
        text, self._held = self._held, ""
        return text


def held_length(text: str, wanted: str) -> int:
    """Length of the longest end of `text` that is a beginning of `wanted`, but not all of it."""
    return next((n for n in range(min(len(text), len(wanted) - 1), 0, -1) if text.endswith(wanted[:n])), 0)
