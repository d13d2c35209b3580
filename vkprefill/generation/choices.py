"""Which tokens may be drawn: a grammar's, no end before there are enough tokens, the end of the reasoning alone where
there are too many of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkprefill.errors import RequestError
from vkprefill.generation.options import AnswerOptions
from vkprefill.grammar.matcher import Matcher
from vkprefill.rounding import ceil_div
from vkprefill.text.answer_text import ends_in_thinking
from vkprefill.text.chat_template import CLOSE_THINKING
from vkprefill.text.tokenizer import Tokenizer


def choices_for(tokenizer: Tokenizer, options: AnswerOptions, prompt: Sequence[int]) -> Choices | None:
    """Of the answer to a prompt; None where any token may be drawn at any time."""
    thinking = ends_in_thinking(tokenizer, prompt)
    matcher = None if options.grammar is None else Matcher(tokenizer, options.grammar, thinking)
    budget = options.thinking_tokens if thinking else None
    if matcher is None and budget is None and not options.min_tokens and not options.ignore_eos:
        return None
    return Choices(tokenizer, matcher, options, budget)


class Choices:
    """Of one answer; told of each token that is drawn."""

    def __init__(
        self, tokenizer: Tokenizer, matcher: Matcher | None, options: AnswerOptions, budget: int | None
    ) -> None:
        """budget: tokens of the reasoning that the answer begins in, if they are bounded. RequestError where the
        vocabulary has no token that ends it.
        """
        self._matcher, self._min_tokens = matcher, options.min_tokens
        self._words = ceil_div(tokenizer.vocab_size, 32)
        stops, self._close = {*options.stop_token_ids}, None
        self._ends = tokenizer.eog_token_ids | stops
        self._never = tokenizer.eog_token_ids - stops if options.ignore_eos else frozenset()
        self._drawn, self._budget = 0, budget
        if budget is not None:
            self._close = tokenizer.special_tokens.get(CLOSE_THINKING)
            if self._close is None:
                raise RequestError(f"thinking_tokens: the vocabulary has no token {CLOSE_THINKING}")

    def rows(self, drafted: Sequence[int]) -> tuple[list[int], np.ndarray | None]:
        """The drafts that may be, up to the first that may not; and uint32 [their number + 1, ceil(V / 32)]: a bit for
        each token that may be drawn before each of them, and after the last. None: all.
        """
        given = list(drafted)
        bits = None
        if self._matcher is not None:
            given, bits = self._matcher.rows(given)
        if not self._restricts():
            return given, bits
        if bits is None:
            bits = np.full((len(given) + 1, self._words), 2**32 - 1, np.uint32)
        thinks, kept = self._budget is not None, []
        for index, row in enumerate(bits):
            self._restrict(row, self._drawn + index, thinks)
            if index == len(given) or not row[given[index] >> 5] >> (given[index] & 31) & 1:
                break
            kept.append(given[index])
            thinks = thinks and given[index] != self._close
        return kept, bits[: len(kept) + 1]

    def push(self, token_id: int) -> None:
        """The answer's next token, one that may be drawn."""
        self._drawn += 1
        if token_id == self._close:
            self._budget = None
        if self._matcher is not None:
            self._matcher.push(token_id)

    def _restricts(self) -> bool:
        return bool(self._never) or self._drawn < self._min_tokens or self._budget is not None

    def _restrict(self, row: np.ndarray, drawn: int, thinks: bool) -> None:
        """The bits of what comes after so many tokens."""
        if thinks and drawn >= self._budget:
            row[:] = 0
            row[self._close >> 5] = 1 << (self._close & 31)
        else:
            for token_id in self._ends if drawn < self._min_tokens else self._never:
                row[token_id >> 5] &= ~np.uint32(1 << (token_id & 31))
