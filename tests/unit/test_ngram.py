"""n-gram drafts against a search that looks at every place."""

import random
from types import SimpleNamespace

import numpy as np
import pytest

from vkprefill.drafting import ngram
from vkprefill.drafting.ngram import MOST_MATCH, NGramDrafter, NGramIndex


def brute_force(text: list[int], least: int) -> int | None:
    """Where the text goes on after the longest earlier match of its end, the latest of equally long ones."""
    best, at = 0, None
    for place in range(1, len(text)):
        matched = 0
        while matched < min(place, MOST_MATCH) and text[place - matched - 1] == text[-matched - 1]:
            matched += 1
        if matched >= max(best, 1):
            best, at = matched, place
    return at if best >= least else None


def repeated(text: list[int], place: int, count: int) -> list[int]:
    """Copied one by one, what was copied being part of the text."""
    text = list(text)
    for i in range(count):
        text.append(text[place + i])
    return text[-count:]


@pytest.mark.parametrize("least", [2, 3, 5])
@pytest.mark.parametrize("kinds", [1, 2, 3, 40])
def test_as_brute_force(kinds, least):
    """Texts of few kinds of tokens are full of matches, long and equal ones; in parts of every length."""
    rng = random.Random(kinds * 10 + least)
    for _ in range(60):
        tokens = [rng.randrange(kinds) + (1 << 31) - kinds for _ in range(rng.randrange(0, 90))]
        index, text = NGramIndex(tokens), list(tokens)
        for _ in range(rng.randrange(1, 5)):
            assert index.after_longest_match(least) == (place := brute_force(text, least))
            if place is not None:
                assert index.copy_from(place, 7) == repeated(text, place, 7)
            added = [rng.randrange(kinds) + (1 << 31) - kinds for _ in range(rng.randrange(0, 9))]
            index.extend(added)
            text += added


def test_longer_before_later_and_later_before_earlier():
    index = NGramIndex([9, 1, 2, 3, 50, 1, 2, 3, 60, 2, 3, 70, 1, 2, 3])
    assert index.copy_from(index.after_longest_match(2), 2) == [60, 2], "of two of three tokens the later"
    index = NGramIndex([8, 1, 2, 3, 50, 7, 2, 3, 60, 1, 2, 3])
    assert index.copy_from(index.after_longest_match(2), 1) == [50], "three tokens before two that are later"


def test_matches_are_counted_up_to_a_bound():
    """A text of one token only has as many matches as tokens: the latest of those that are long enough is right."""
    index = NGramIndex([5] * 1000)
    assert index.after_longest_match(2) == 999
    assert index.copy_from(999, 7) == [5] * 7


def test_a_long_prompt_is_not_looked_through(monkeypatch):
    """100,000 tokens: of the index's pairs only those are touched that are the last pair's, of the text itself only
    what was added.
    """
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, 248320, 100_000)
    tokens[50_000:50_020] = tokens[-20:]
    index = NGramIndex(tokens)
    made = []
    pairs = NGramIndex._pairs
    monkeypatch.setattr(NGramIndex, "_pairs", lambda self, a, b: made.append(b - a) or pairs(self, a, b))
    assert index.after_longest_match(3) == 50_020
    index.extend(tokens[50_020:50_025].tolist())
    assert index.after_longest_match(3) == 50_025
    assert max(made) <= 8


def cache_of(token_ids: list[int]) -> SimpleNamespace:
    class Rows(SimpleNamespace):
        def __len__(self) -> int:
            return len(self.token_ids)

    return Rows(token_ids=token_ids)


def test_drafter_sees_the_whole_prompt_and_what_was_run_since():
    """Of the prompt the cache has only some tokens, as after a sparse prefill."""
    prompt = [1, 2, 3, 4, 5, 6, 7, 8]
    cache = cache_of([1, 8])
    drafter = NGramDrafter(prompt, len(cache))
    assert drafter.draft(9, cache, 3, 0.0) == []
    cache.token_ids += [9, 3]
    assert drafter.draft(4, cache, 3, 0.0) == [5, 6, 7], "from what was left out"
    assert drafter.draft(4, cache, 2, 0.0) == [5, 6], "asked again before the token was run"
    cache.token_ids += [4, 20, 8]
    assert drafter.draft(9, cache, 4, 0.0) == [3, 4, 20, 8], "from the answer, across the prompt's end"


@pytest.mark.parametrize(("least", "drafts"), [(ngram.LEAST_ALONE, [3]), (ngram.LEAST_BESIDE, [])])
def test_least_match(least, drafts):
    assert NGramDrafter([7, 1, 2, 3, 8, 1], 6, least).draft(2, cache_of([0] * 6), 1, 0.0) == drafts


@pytest.mark.parametrize("prompt", [[], [4], [4, 4]])
def test_short_prompts(prompt):
    drafter = NGramDrafter(prompt, len(prompt))
    cache = cache_of(list(prompt))
    assert drafter.draft(4, cache, 3, 0.0) == ([4, 4, 4] if len(prompt) == 2 else [])
