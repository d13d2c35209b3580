"""Follows a grammar token by token: which tokens may come next, as bits that the device reads.

A matcher knows the tokens drawn so far. For drafts it is asked ahead: each row of a run has the bits after the drafts
before it, and the drafts end where the grammar refuses one.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np

from vkprefill.errors import RequestError
from vkprefill.grammar.grammars import Grammar, llguidance, one_line
from vkprefill.rounding import ceil_div
from vkprefill.text.tokenizer import Tokenizer

_tokenizers: WeakKeyDictionary[Tokenizer, object] = WeakKeyDictionary()


class Matcher:
    """One answer's way through a grammar. Raises RequestError where the grammar cannot be followed with these tokens,
    or has become too much for llguidance.
    """

    def __init__(self, tokenizer: Tokenizer, grammar: Grammar, thinking: bool) -> None:
        """thinking: the answer begins inside of reasoning."""
        self._what = grammar.what
        if not tokenizer.eog_token_ids:
            raise RequestError(f"{self._what}: the vocabulary has no token that ends an answer")
        text = grammar.whole(tokenizer.special_tokens, thinking)
        self._ends = tokenizer.eog_token_ids
        self._words = ceil_div(tokenizer.vocab_size, 32)
        self._matcher = llguidance(self._what).LLMatcher(_prepared(tokenizer, self._what), text, log_level=0)
        self._check()

    def rows(self, drafted: Sequence[int]) -> tuple[list[int], np.ndarray]:
        """The drafts that the grammar allows, up to the first that it does not, and uint32 [their number + 1,
        ceil(V / 32)]: a bit for each token that may come before each of them, and after the last.
        """
        rows, allowed = [self._bits()], []
        for token_id in drafted:
            if not rows[-1][token_id >> 5] >> (token_id & 31) & 1:
                break
            allowed.append(token_id)
            if token_id in self._ends:
                rows.append(rows[-1])  # nothing is drawn after an end
                break
            self._matcher.consume_token(token_id)
            rows.append(self._bits())
        ahead = len(allowed) - (bool(allowed) and allowed[-1] in self._ends)
        if ahead:
            self._matcher.rollback(ahead)
            self._check()
        return allowed, np.stack(rows)  # a copy, which the caller may change

    def push(self, token_id: int) -> None:
        """The answer's next token, one that is allowed."""
        if token_id not in self._ends:
            self._matcher.consume_token(token_id)
            self._check()

    def _bits(self) -> np.ndarray:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)[: self._words]
        self._check()
        if not bits.any():
            raise RequestError(f"{self._what}: no token of the vocabulary may come next")
        return bits

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RequestError(f"{self._what}: {one_line(self._matcher.get_error())}")


def _prepared(tokenizer: Tokenizer, what: str) -> object:
    """llguidance's view of the vocabulary, made once (a second for a large one)."""
    if tokenizer not in _tokenizers:
        library = llguidance(what)
        _tokenizers[tokenizer] = library.LLTokenizer(
            _Wrapper(tokenizer), n_vocab=tokenizer.vocab_size, eos_token=sorted(tokenizer.eog_token_ids)
        )
    return _tokenizers[tokenizer]


class _Wrapper:
    """The members that llguidance reads of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id = min(tokenizer.eog_token_ids)
        self.tokens = tokenizer.all_bytes()
        self.special_token_ids = sorted(tokenizer.special_tokens.values())
        self._encode = tokenizer.encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode(errors="replace"))
