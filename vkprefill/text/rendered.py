"""A conversation's prompt in the parts that its chat template makes, and where in its tokens something of it stands.

No template says where it put a message. So the conversation is rendered again without it, or with another text in its
place: what differs is what the message became. This needs no assumption on the template.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from vkprefill.text.tokenizer import Tokenizer

Parts = Sequence[str | int]
"""Text and ids of special tokens in turn, as ChatTemplate.parts gives them."""


class Rendered:
    """A prompt in parts and tokens. each: the ids of each part, where the caller has encoded them."""

    def __init__(self, parts: Parts, tokenizer: Tokenizer, each: Sequence[Sequence[int]] | None = None) -> None:
        self.parts, self.tokenizer = parts, tokenizer
        self.each = list(tokenizer.encode_each(parts)) if each is None else each
        self._starts = [0, *itertools.accumulate(map(len, self.each))]  # first token of each part

    @cached_property
    def token_ids(self) -> list[int]:
        return list(itertools.chain.from_iterable(self.each))

    def shared_n(self, others: Parts) -> int:
        """How many first tokens another prompt has in common. What they share is not encoded again."""
        for number, (part, ids, other) in enumerate(zip(self.parts, self.each, others, strict=False)):
            if part != other:
                before = [""] if number else []  # a first part may be encoded in its own way
                return self._starts[number] + _common(ids, self.tokenizer.encode_parts([*before, other]))
        return self._starts[min(len(self.parts), len(others))]

    def differing(self, others: Parts) -> tuple[int, int] | None:
        """The tokens, as (start, end), of what is between the text that both prompts begin with and the text that both
        end with; None where they are equal.
        """
        first = _common(self.parts, others)
        if first == len(self.parts):
            return None
        most = min(len(self.parts), len(others)) - first  # parts that may belong to the common end
        last = len(self.parts) - 1 - min(most, _common(self.parts[::-1], others[::-1]))
        if last < first:
            return None  # the other one has more, this one lacks nothing of it
        other_last = last - len(self.parts) + len(others)
        head = tail = 0
        if first < len(others) and other_last >= first:
            head = _common_text(self.parts[first], others[first])
            tail = _common_text(_backwards(self.parts[last]), _backwards(others[other_last]))
            if tail and first == last:
                tail = min(tail, len(self.parts[last]) - head)
            if tail and first == other_last:
                tail = min(tail, len(others[first]) - head)
        start = self._starts[first] + self._num_tokens(first, head)
        end = self._starts[last] + len(self.each[last]) - self._num_tokens(last, tail, at_end=True)
        return (start, end) if start < end else None

    def _num_tokens(self, number: int, num_chars: int, *, at_end: bool = False) -> int:
        """Tokens that lie within so many first (or last) characters of a part."""
        if not num_chars:
            return 0
        part, ids = self.parts[number], self.each[number]
        num_bytes = len((part[-num_chars:] if at_end else part[:num_chars]).encode())
        sizes = [len(self.tokenizer.token_bytes(token_id)) for token_id in (reversed(ids) if at_end else ids)]
        return int(np.searchsorted(np.cumsum(sizes), num_bytes, side="right"))


def _common(a: Sequence[object], b: Sequence[object]) -> int:
    """Length of the common beginning."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _common_text(a: str | int, b: str | int) -> int:
    return _common(a, b) if isinstance(a, str) and isinstance(b, str) else 0


def _backwards(part: str | int) -> str | int:
    return part[::-1] if isinstance(part, str) else part
