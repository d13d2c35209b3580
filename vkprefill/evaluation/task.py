"""A task: a prompt of a wanted length with the answers that are right, and how an answer is scored."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from vkprefill.errors import RequestError
from vkprefill.generation.prompt import EncodedPrompt
from vkprefill.specprefill.protection import Protected

Encoder = Callable[[str | Sequence[Mapping[str, object]]], EncodedPrompt]
"""Text of a user's message, or messages -> the prompt."""

EQUAL = "equal"  # to one of the right answers, after strip
ANY = "any"  # contains one of them
ALL = "all"  # contains all of them, as words of their own, in any case of letters


@dataclass(frozen=True)
class Task:
    """A prompt with the answers that are right.

    length: tokens asked for (a file's tasks: None); question_at: first token of the question; depth: where in the text
    the fact stands, from 0 to 1; match: EQUAL, ANY or ALL.
    """

    id: str
    kind: str
    length: int | None
    prompt: str | Sequence[Mapping[str, object]]
    token_ids: tuple[int, ...]
    question_at: int
    answers: tuple[str, ...]
    depth: float | None = None
    match: str = EQUAL
    protected: Protected | None = None  # None: what the tokens alone tell

    def score(self, answer: str) -> float:
        """Share of what is expected that the answer has, from 0 to 1; between the two for ALL only."""
        if self.match == EQUAL:
            return float(answer.strip() in self.answers)
        if self.match == ANY:
            return float(any(one in answer for one in self.answers))
        found = (re.search(rf"(?<![\w-]){re.escape(one)}(?![\w-])", answer, re.IGNORECASE) for one in self.answers)
        return sum(one is not None for one in found) / len(self.answers)

    def is_right(self, answer: str) -> bool:
        return self.score(answer) == 1


@dataclass(frozen=True)
class Made:
    """A task before its length is chosen. text(n): the document with n pieces of filler, `most` at most, `least` at
    least, longer with each.
    """

    text: Callable[[int], str]
    most: int
    question: str
    answers: tuple[str, ...]
    match: str = EQUAL
    least: int = 0


def mixed(pool: Sequence[str], facts: Sequence[tuple[float, str]], ends: Sequence[str] = ()) -> Callable[[int], str]:
    """The first n pieces of the pool with facts (depth from 0 to 1, sentence) among them. ends: what follows each
    piece (a blank where there are too few).
    """

    def text(count: int) -> str:
        pieces = list(pool[:count])
        for where, sentence in sorted(facts, reverse=True):
            pieces.insert(round(where * count), sentence)
        given = [*ends[: len(pieces)], *[" "] * (len(pieces) - len(ends))]
        return "".join(piece + end for piece, end in zip(pieces, given, strict=True)).rstrip()

    return text


def fitted(encode: Encoder, name: str, kind: str, length: int, depth: float, made: Made) -> Task:
    """With as much filler as `length` tokens hold. RequestError where they do not hold the facts and the question."""

    def prompt(count: int) -> str:
        return f"{made.text(count)}\n{made.question}"

    least = len(encode(prompt(made.least)).token_ids)
    if least > length:
        raise RequestError(f"length: {length} tokens, the facts and the question of a task ({kind}) alone take {least}")
    low, high = made.least, made.most + 1  # so much filler fits, so much does not or is not there
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if len(encode(prompt(middle)).token_ids) <= length else (low, middle)
    encoded = encode(prompt(low))
    return Task(
        name,
        kind,
        length,
        prompt(low),
        tuple(encoded.token_ids),
        first_difference(encoded.token_ids, encode(made.text(low)).token_ids),
        made.answers,
        depth,
        made.match,
        encoded.protected,
    )


def first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    """Index of the first element in which two sequences differ, or at which one ends."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
