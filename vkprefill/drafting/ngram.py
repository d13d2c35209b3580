"""Drafts without a model: what followed when the last tokens came before.

The longest match decides, of equally long ones the most recent. Matches are counted up to MOST_MATCH tokens: beyond
that the more recent is as good.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkprefill.engine.cache import Cache

MOST_MATCH = 32
LEAST_ALONE, LEAST_BESIDE = 2, 3  # tokens of a match: where it is the only source of drafts, beside a better one
PAIR = 2  # tokens that the index goes by


class NGramIndex:
    """A growing text of token ids that knows where any two tokens followed each other.

    Places in the text it begins with are found by binary search; what was added since is looked through, a vectorised
    comparison of a few thousand numbers.
    """

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._ids = np.array(token_ids, np.int64)
        self.length = len(self._ids)
        pairs = self._pairs(0, self.length)
        self._order = np.argsort(pairs, kind="stable")  # of the pair that begins at each place
        self._pairs_in_order = pairs[self._order]

    def extend(self, token_ids: Sequence[int]) -> None:
        end = self.length + len(token_ids)
        if end > len(self._ids):
            self._ids = np.concatenate([self._ids[: self.length], np.zeros(max(end, 64), np.int64)])
        self._ids[self.length : end] = token_ids
        self.length = end

    def after_longest_match(self, least: int) -> int | None:
        """Where the text goes on after the longest earlier match, of at least 2 tokens, of its end."""
        if self.length <= PAIR:
            return None
        ids, end = self._ids, self.length
        places = self._places_of_last_pair()
        matched = PAIR if len(places) else 0
        while 0 < matched < MOST_MATCH:
            longer = places[places > matched]
            longer = longer[ids[longer - matched - 1] == ids[end - matched - 1]]
            if not len(longer):
                break
            places, matched = longer, matched + 1
        return int(places[-1]) if matched >= least else None

    def copy_from(self, place: int, count: int) -> list[int]:
        """`count` tokens of the text from a place on; past its end those of the copy, as for a text that repeats."""
        copied = self._ids[place : min(place + count, self.length)].tolist()
        while len(copied) < count:
            copied.append(copied[place + len(copied) - self.length])
        return copied

    def _places_of_last_pair(self) -> np.ndarray:
        """Rising places that the last two tokens came before, without the end."""
        (pair,) = self._pairs(self.length - PAIR, self.length)
        first, last = np.searchsorted(self._pairs_in_order, [pair, pair + 1])
        since = len(self._order)
        added = np.flatnonzero(self._pairs(since, self.length - 1) == pair) + since
        places = np.concatenate([self._order[first:last], added]) + PAIR
        return places[places < self.length]

    def _pairs(self, first: int, end: int) -> np.ndarray:
        """A number for each two tokens that follow each other in a part of the text: token ids have 31 bits."""
        return self._ids[first : end - 1] << 32 | self._ids[first + 1 : end]


class NGramDrafter:
    """See Drafter. prompt: all of it, tokens that a sparse prefill left out too; num_rows: of the cache after prefill;
    least: tokens of a match.
    """

    def __init__(self, prompt: Sequence[int], num_rows: int, least: int = LEAST_ALONE) -> None:
        self._text = NGramIndex(prompt)
        self._num_rows = num_rows  # of the cache, that the text goes up to
        self._least = least

    def draft(self, token_id: int, cache: Cache, count: int, p_min: float) -> list[int]:
        """p_min: not used, a match has no probability."""
        known = len(cache) + 1
        self._text.extend([*cache.token_ids[self._num_rows :], token_id][: known - self._num_rows])
        self._num_rows = known
        place = self._text.after_longest_match(self._least)
        return [] if place is None else self._text.copy_from(place, count)
