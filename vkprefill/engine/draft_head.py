"""Which tokens a draft may be: the whole head, or the first rows of it and some tokens more.

Byte-pair merges come in the order of how common they were, so the first rows are the common tokens and need no copy.
Whatever a draft is, the trunk's whole head decides; what is left out can only never be drafted.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from vkprefill.engine.cache import Cache
from vkprefill.engine.sizes import MAX_DRAFT_IDS, NO_TOKEN
from vkprefill.engine.weights import Matrix


@dataclass(frozen=True)
class DraftHead:
    """first: the first rows of the head's matrix; whole: all of it, of which num_ids rows are chosen by token id."""

    first: Matrix
    whole: Matrix
    num_ids: int

    @classmethod
    def cut(cls, whole: Matrix, num_rows: int) -> DraftHead:
        """num_rows: of the vocabulary's first tokens; 0: all."""
        if not 0 < num_rows < whole.rows:
            return cls(whole, whole, 0)
        parts = tuple(
            replace(part, rows=min(part.rows, num_rows - part.first_row))
            for part in whole.parts
            if part.first_row < num_rows
        )
        first = replace(whole, name=f"{whole.name}[:{num_rows}]", rows=num_rows, parts=parts)
        return cls(first, whole, min(MAX_DRAFT_IDS, whole.rows - num_rows))

    @property
    def num_logits(self) -> int:
        return self.first.rows + self.num_ids


class ChosenIds:
    """The tokens beyond the first rows: `always`, then those of a cache, the latest first, `most` at most."""

    def __init__(self, first_rows: int, most: int, always: Iterable[int]) -> None:
        self._first_rows, self._most = first_rows, most
        self._always = dict.fromkeys(token for token in sorted(always) if token >= first_rows)
        self._cache: weakref.ref[Cache] | None = None
        self._length = 0
        self._seen: dict[int, None] = {}  # tokens in the order of their last places

    def of(self, cache: Cache) -> np.ndarray:
        """uint32 [most], NO_TOKEN where there are fewer. Looks at what came since it was asked before."""
        if self._cache is None or self._cache() is not cache or len(cache) < self._length:
            self._cache, self._length, self._seen = weakref.ref(cache), 0, {}
        for token in cache.token_ids[self._length :]:
            if token >= self._first_rows:
                self._seen.pop(token, None)
                self._seen[token] = None
        self._length = len(cache)
        ids = list(dict.fromkeys((*self._always, *reversed(self._seen))))[: self._most]
        return np.array(ids + [NO_TOKEN] * (self._most - len(ids)), np.uint32)
