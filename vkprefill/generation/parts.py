"""What an answer comes as: parts while it is made, a result of all of them, cut at the texts that end it."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from vkprefill.generation.steps import Timings
from vkprefill.specprefill.plan import SpecPrefillReport
from vkprefill.text.stop_strings import StopStrings
from vkprefill.work import Pause


@dataclass
class GenerationPart:
    """A piece of the answer. Its text may be empty while a character is incomplete; the last part has a finish_reason.

    finish_reason: "stop" (the model ended its answer, or one of the texts that end it was found: stop_text), "length"
    (max_tokens or the context is used up) or "check" (a check found that the dense model says something else);
    revised_from: characters of the answer that stay, where what came after them was wrong: this part's text, and its
    token, stand in its place; held: text of its tokens is kept back, or cut off; chances: what a LogprobSampler
    remembered of the tokens since the last part that tells of some.
    """

    text: str
    token_id: int | None
    timings: Timings
    specprefill: SpecPrefillReport
    finish_reason: str | None = None
    revised_from: int | None = None
    stop_text: str | None = None
    held: bool = False
    chances: Sequence[list[tuple[int, float]]] = ()


Parts = Generator[GenerationPart | Pause, None, None]
"""An answer in slices: each ends with a Pause."""


@dataclass
class GenerationResult:
    """A whole answer. token_ids: those of the text, without the end-of-generation token."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = "length"
    timings: Timings = field(default_factory=Timings)
    specprefill: SpecPrefillReport | None = None

    def add(self, part: GenerationPart) -> None:
        if part.revised_from is not None:
            self.text = self.text[: part.revised_from]
            del self.token_ids[part.specprefill.check["agreed_n"] :]
        self.text += part.text
        if part.token_id is not None:
            self.token_ids.append(part.token_id)
        self.finish_reason = part.finish_reason or self.finish_reason
        self.timings, self.specprefill = part.timings, part.specprefill

    def as_dict(self) -> dict[str, object]:
        """The object that `generate --json` prints."""
        return {
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "timings": self.timings.as_dict(),
            "specprefill": self.specprefill.as_dict() if self.specprefill else None,
        }


def collect(parts: Iterator[GenerationPart]) -> GenerationResult:
    """All parts as one result."""
    result = GenerationResult()
    for part in parts:
        result.add(part)
    return result


def cut_at_stops(parts: Parts, stops: Sequence[str]) -> Parts:
    """The parts up to the first of the texts, which is not shown; what may be its beginning is kept back."""
    found = StopStrings(stops)
    with closing(parts):
        for part in parts:
            if isinstance(part, Pause):
                yield part
                continue
            part.text = found.push(part.text)
            if found.found is not None:
                part.finish_reason, part.stop_text = "stop", found.found
            elif part.finish_reason is not None:
                part.text += found.finish()
            part.held = found.holds or found.found is not None
            yield part
            if part.finish_reason is not None:
                return
