"""Where in a user's message the request stands: people ask at its beginning or at its end, in a line or paragraph.

    first line, last line      whole, or 64 tokens up to (from) the end of a sentence
    paragraphs near either end that end in a question mark
    questions elsewhere        where the message has few
    a short message            all of it

Of a long first or last line, one sentence is the heart, which comes before all choice. Where little is kept, the rest
of the end is worth more than that of the beginning, which may be that of a text.

All by the bytes of its tokens, so that nothing depends on how a text was cut into tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

SHORT = 256  # tokens of a message that is protected whole
MOST = 256  # protected tokens of a longer one
OF_LINE = 64  # at most, of its first and last line each
OF_HEART = 32  # a first line with more is rather the beginning of a text than a request
NEAR_ENDS = 3  # paragraphs from either end among which questions are looked for
ELSEWHERE = 64  # tokens of the questions elsewhere together: a text full of questions asks none of them

_ASKS = "?\uff1f\u061f"  # question marks: Latin, full-width, Arabic
_WIDE_ENDS = "\u3002\uff01\uff1f\uff0e\u0964"  # ends of sentences that no space follows: Chinese, Japanese, Hindi
_CLOSING = "\"')]}>*_`\u201d\u2019\u00bb\u300d\u300f\uff09"  # what may stand after the end of a sentence


def _any_of(characters: str) -> bytes:
    return b"(?:" + b"|".join(re.escape(c.encode()) for c in characters) + b")"


_SENTENCE_END = re.compile(
    rb"(?:[.!]|%b)%b*(?=\s|\Z)|%b%b*" % (_any_of(_ASKS), _any_of(_CLOSING), _any_of(_WIDE_ENDS), _any_of(_CLOSING))
)
_ENDS_ASKING = re.compile(rb"%b%b*\s*\Z" % (_any_of(_ASKS), _any_of(_CLOSING)))
_ASKED = re.compile(rb"(?<=\S)%b%b*(?=\s|\Z)|\xef\xbc\x9f" % (_any_of(_ASKS), _any_of(_CLOSING)))
_LINE = re.compile(rb"[^\n]+")

Span = tuple[int, int]


@dataclass(frozen=True)
class Requests:
    """Tokens to protect, as rising (start, end) pairs, at most 256 in all. ending: of them all of the last line and one
    sentence of the first; heart: one sentence of both.
    """

    all: tuple[Span, ...] = ()
    ending: tuple[Span, ...] = ()
    heart: tuple[Span, ...] = ()

    def within(self, most: float) -> tuple[Span, ...]:
        """As much as takes no more than so many tokens, but the heart in any case."""
        few = (spans for spans in (self.all, self.ending) if sum(end - start for start, end in spans) <= most)
        return next(few, self.heart)

    def moved(self, by: int) -> Requests:
        """Counted from a token before these."""
        levels = self.all, self.ending, self.heart
        return Requests(*(tuple((start + by, end + by) for start, end in spans) for spans in levels))

    def __add__(self, other: Requests) -> Requests:
        return Requests(self.all + other.all, self.ending + other.ending, self.heart + other.heart)


def requests_in(token_bytes: Sequence[bytes]) -> Requests:
    """What to protect of a message of these tokens."""
    if len(token_bytes) <= SHORT:
        whole = ((0, len(token_bytes)),) if token_bytes else ()
        return Requests(whole, whole, whole)
    return _Message(token_bytes).requests()


class _Message:
    """A long message: its bytes, and the tokens they belong to."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._data = b"".join(token_bytes)
        self._ends = np.cumsum([len(raw) for raw in token_bytes])
        self._taken = np.zeros(len(token_bytes), bool)
        self._lines = [found.span() for found in _LINE.finditer(self._data) if found[0].strip()]

    def requests(self) -> Requests:
        if not self._lines:
            return Requests()
        return Requests(
            self._ranges(OF_LINE, OF_LINE, OF_LINE), self._ranges(OF_HEART, 1, OF_LINE), self._ranges(OF_HEART, 1, 1)
        )

    def _ranges(self, whole: int, first_sentences: int, last_sentences: int) -> tuple[Span, ...]:
        """Lines and questions; at most so many sentences of a first line with more than `whole` tokens, and of a last
        one with more than 64.
        """
        self._taken[:] = False
        self._take(self._tail(self._lines[-1], last_sentences))
        self._take(self._head(self._lines[0], whole, first_sentences))
        for paragraph in self._near_ends():
            if _ENDS_ASKING.search(self._data, *paragraph) and not self._take(self._tokens(paragraph)):
                self._take(self._tail(self._last_line(paragraph), last_sentences))
        self._take_questions_elsewhere()
        changes = np.flatnonzero(np.diff(self._taken, prepend=False, append=False))
        return tuple(zip(changes[::2].tolist(), changes[1::2].tolist(), strict=True))

    def _take(self, tokens: Span) -> bool:
        """Protect these, unless there would be too many."""
        before, part = self._taken.sum(), self._taken[slice(*tokens)]
        if before + part.size - part.sum() > MOST:
            return False
        part[:] = True
        return True

    def _take_questions_elsewhere(self) -> None:
        wanted = self._taken.copy()
        for found in _ASKED.finditer(self._data):
            line_start = self._data.rfind(b"\n", 0, found.start()) + 1
            sentences = [s.end() for s in _SENTENCE_END.finditer(self._data, line_start, found.start())]
            start, end = self._tail((max(sentences, default=line_start), found.end()), 1)
            wanted[start:end] = True
            if wanted.sum() > min(MOST, self._taken.sum() + ELSEWHERE):
                return
        self._taken = wanted

    def _near_ends(self) -> Iterator[Span]:
        """The last paragraphs, the nearest to the end first, then the first ones. Blank lines stand between them."""
        found: list[Span] = []
        for start, end in self._lines:
            if (
                found
                and not self._data[found[-1][1] : start].strip(b"\r\n \t")
                and (self._data.count(b"\n", found[-1][1], start) == 1)
            ):
                found[-1] = found[-1][0], end
            else:
                found.append((start, end))
        yield from found[: -NEAR_ENDS - 1 : -1]
        yield from found[:NEAR_ENDS]

    def _last_line(self, paragraph: Span) -> Span:
        return self._data.rfind(b"\n", *paragraph) + 1 or paragraph[0], paragraph[1]

    def _tokens(self, span: Span) -> Span:
        """Tokens that have a byte of these, line ends around them left out."""
        text = self._data[slice(*span)]
        start = span[0] + len(text) - len(text.lstrip(b"\r\n"))
        end = span[1] - len(text) + len(text.rstrip())
        first, last = np.searchsorted(self._ends, [start, end - 1], side="right")
        return (int(first), int(last) + 1) if start < end else (0, 0)

    def _head(self, line: Span, whole: int, most_sentences: int) -> Span:
        """A line's tokens where they are at most `whole`, else its first ones up to the end of a sentence."""
        start, end = self._tokens(line)
        if end - start <= whole:
            return start, end
        cut = int(self._ends[min(start + OF_LINE, end) - 1])
        sentences = [found.end() for found in _SENTENCE_END.finditer(self._data, line[0], cut)]
        sentences = [place for place in sentences if place < cut or not self._data[cut : cut + 1].strip()]
        if sentences:
            return self._tokens((line[0], sentences[:most_sentences][-1]))
        return start, self._border(min(start + OF_LINE, end), -1)

    def _tail(self, line: Span, most_sentences: int) -> Span:
        """A line's tokens where they are at most 64, else its last ones from the beginning of a sentence."""
        start, end = self._tokens(line)
        if end - start <= OF_LINE:
            return start, end
        cut = int(self._ends[end - OF_LINE - 1])
        ends = [found.end() for found in _SENTENCE_END.finditer(self._data, max(cut - 8, line[0]), line[1])]
        begins = [place for place in ends if place >= cut and self._data[place : line[1]].strip()]
        if begins:
            return self._tokens((begins[-most_sentences:][0], line[1]))
        return self._border(end - OF_LINE, 1), end

    def _border(self, token: int, step: int) -> int:
        """The nearest token in a direction that begins with a character."""
        while 0 < token < len(self._ends) and self._data[self._ends[token - 1]] & 0xC0 == 0x80:
            token += step
        return token
