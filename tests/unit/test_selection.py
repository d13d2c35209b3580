"""Chunks and the choice among them, against values worked out by hand."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from vkprefill.errors import ShapeError
from vkprefill.specprefill.layout import Layout
from vkprefill.specprefill.selection import (
    Selection,
    chunk_bounds,
    select,
)
from vkprefill.specprefill.settings import SpecPrefillConfig


def chunk_values(*scores: float, size: int = 32) -> np.ndarray:
    """Importance whose chunks of `size` tokens have these means."""
    return np.repeat(np.array(scores, np.float32), size)


def chosen(importance: np.ndarray, *, first: int = 0, layout=None, protected=(), **settings) -> Selection:
    """By tokens, as chunks are counted most easily, where nothing else is said."""
    config = SpecPrefillConfig(**{"chunk_align": "tokens", **settings})
    return select(importance, config, first=first, layout=layout, protected=protected)


def layout(num_tokens: int, ends: Sequence[int] = ()) -> Layout:
    """Of one-byte tokens, those at `ends` being line ends."""
    return Layout([b"\n" if n in ends else b"x" for n in range(num_tokens)])


# chunks


@pytest.mark.parametrize(
    "num_tokens, chunk_size, first, expected",
    [
        (70, 32, 0, [0, 32, 64, 70]),
        (64, 32, 0, [0, 32, 64]),
        (1, 32, 0, [0, 1]),
        (5, 1, 2, [2, 3, 4, 5]),
        (100, 32, 30, [30, 62, 94, 100]),
        (100, 32, 99, [99, 100]),
        (10, 2**31 - 1, 0, [0, 10]),
    ],
)
def test_chunk_bounds(num_tokens, chunk_size, first, expected):
    found = chunk_bounds(num_tokens, chunk_size, first=first)
    assert found.tolist() == expected and found.dtype == np.int32


@pytest.mark.parametrize("arguments", [(0, 32, 0), (10, 0, 0), (10, 32, 10), (10, 32, -1)])
def test_chunk_bounds_refuse(arguments):
    with pytest.raises(ShapeError, match="chunks of"):
        chunk_bounds(*arguments)


# select


def test_mass_keeps_the_fewest_best_chunks():
    importance = chunk_values(1, 8, 2, 9, *[0] * 6)  # of 20: 9, 17 = 0.85
    found = chosen(importance)
    assert found.kept_ranges == ((0, 4), (32, 64), (96, 128), (318, 320))
    assert found.kept.tolist() == [*range(4), *range(32, 64), *range(96, 128), 318, 319]
    assert found.kept.dtype == np.int32
    assert found.forced.tolist() == [0, 1, 2, 3, 318, 319]
    assert found.chunk_bounds.tolist() == list(range(0, 321, 32))
    assert found.chunk_scores.tolist() == [1, 8, 2, 9, 0, 0, 0, 0, 0, 0]
    assert not found.kept_all
    assert chosen(importance, cumulative_mass=0.86).kept_ranges == ((0, 4), (32, 128), (318, 320))


def test_mass_weighs_a_short_chunk_by_its_tokens():
    # means 4, 5, 6; sums 128, 160, 6 x 4 = 24 of 312; 0.55 of it = 171.6: the short one and the second, 184
    importance = np.concatenate([chunk_values(4, 5), np.full(4, 6.0)])
    found = chosen(importance, cumulative_mass=0.55)
    assert found.chunk_scores.tolist() == [4, 5, 6]
    assert found.kept_ranges == ((0, 4), (32, 68))


def test_mass_of_nothing_is_the_best_chunk_and_of_all_every_chunk_with_some():
    importance = chunk_values(0, 1, 2, 0)
    assert chosen(importance, cumulative_mass=0.0).kept_ranges == ((0, 4), (64, 96), (126, 128))
    assert chosen(importance, cumulative_mass=1.0).kept_ranges == ((0, 4), (32, 96), (126, 128))
    assert chosen(np.zeros(128)).kept_ranges == ((0, 32), (126, 128))


def test_mass_of_constant_scores():
    found = chosen(np.ones(640, np.float32))  # 17 of 20 chunks are exactly 0.85
    assert found.kept_ranges == ((0, 17 * 32), (638, 640))


def test_chunk_mode_rounds_up():
    importance = chunk_values(*range(10))
    assert chosen(importance, select_mode="chunk").kept_ranges == ((0, 4), (224, 320))  # 3 of 10
    found = chosen(importance, select_mode="chunk", keep_ratio=0.31)
    assert found.kept_ranges == ((0, 4), (192, 320))
    found = chosen(importance, select_mode="chunk", keep_ratio=0.0)
    assert found.kept_ranges == ((0, 4), (288, 320))  # of 320 tokens at least 32: one chunk


def test_chunk_mode_takes_7_percent_of_100_for_7():
    found = chosen(np.ones(3200), select_mode="chunk", keep_ratio=0.07, max_keep=0, chunk_size=32)
    # 7 chunks are 224 tokens, the last two are forced
    assert found.kept_ranges == ((0, 224), (3198, 3200))


def test_ties_go_to_the_earlier_chunk():
    found = chosen(chunk_values(1, 3, 2, 3, 2, 3), select_mode="chunk", keep_ratio=4 / 6)
    assert found.kept_ranges == ((0, 4), (32, 128), (160, 192))
    # a short last chunk of equal tokens ties with the full ones, though its sum rounds in another way
    importance = np.full(32 * 9 + 7, 0.1, np.float32)
    assert chosen(importance, select_mode="chunk", keep_ratio=0.9).kept_ranges == ((0, 288), (293, 295))


def test_minimum_of_kept_tokens():
    peak = np.zeros(2000)
    peak[1000] = 1.0
    # a tenth of 2000, at most 128: chunk 31 is 32 tokens, and further chunks 0 to 2 of equal ones, with 2 forced
    assert chosen(peak).kept_ranges == ((0, 96), (992, 1024), (1998, 2000))
    # of 700 tokens 70: chunk 0 (32) + chunk 2 (32) + 2 forced = 66; one more
    importance = np.zeros(700)
    importance[64:96] = 1.0
    assert chosen(importance).kept_ranges == ((0, 96), (698, 700))
    assert len(chosen(np.zeros(700), chunk_size=68).kept) == 70  # exactly 70 is enough
    assert len(chosen(np.zeros(701), chunk_size=68).kept) == 138  # a tenth of 701 is more than 70


def test_max_keep_drops_the_lowest_chunks():
    importance = chunk_values(5, 1, 4, 2, 3)
    # order 0, 2, 4, 3, 1; forced: 0..3 and 158, 159
    assert chosen(importance, cumulative_mass=1.0).kept_all
    assert chosen(importance, cumulative_mass=1.0, max_keep=128).kept_ranges == ((0, 32), (64, 160))
    assert chosen(importance, cumulative_mass=1.0, max_keep=127).kept_ranges == ((0, 32), (64, 96), (128, 160))
    assert chosen(importance, cumulative_mass=1.0, max_keep=66).kept_ranges == ((0, 32), (64, 96), (158, 160))
    assert chosen(importance, cumulative_mass=1.0, max_keep=65).kept_ranges == ((0, 32), (158, 160))


def test_max_keep_beats_the_minimum_and_forced_tokens_beat_max_keep():
    importance = np.ones(2000)
    assert len(chosen(importance, max_keep=40).kept) == 34  # 128 is the minimum
    assert chosen(importance, max_keep=20).kept_ranges == ((0, 4), (1998, 2000))  # no chunk fits
    assert chosen(importance, max_keep=1).kept_ranges == ((0, 4), (1998, 2000))
    assert len(chosen(importance, max_keep=10, tail=500).kept) == 504
    assert len(chosen(importance, max_keep=0).kept) == 1730  # 54 chunks, the fewest with 0.85 x 2000, and 2


def test_keep_ratio_1_keeps_all_in_both_modes():
    importance = np.random.default_rng(3).random(5000)
    for mode in "mass", "chunk":
        found = chosen(importance, select_mode=mode, keep_ratio=1, max_keep=100)
        assert found.kept_all and found.kept_ranges == ((0, 5000),)


def test_tail_and_protect_are_kept():
    importance = chunk_values(1, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    found = chosen(importance, tail=10, protect=((100, 110), (105, 120), (319, 9999), (5000, 6000)))
    assert found.kept_ranges == ((0, 32), (100, 120), (310, 320))
    assert found.forced.tolist() == [*range(4), *range(100, 120), *range(310, 320)]
    assert chosen(importance, tail=1).kept_ranges == ((0, 32), (318, 320))  # the last 2 in any case
    assert chosen(importance, tail=2**31 - 1).kept_all


@pytest.mark.parametrize("num_tokens", range(1, 8))
def test_short_prompts_are_kept_whole(num_tokens):
    found = chosen(np.zeros(num_tokens))
    assert found.kept_all and found.kept.tolist() == list(range(num_tokens))
    assert found.kept_ranges == ((0, num_tokens),)


def test_chunk_larger_than_the_prompt():
    assert chosen(np.ones(20), chunk_size=1000).kept_all
    assert chosen(np.ones(20), chunk_size=1000, max_keep=10).kept_ranges == ((0, 4), (18, 20))


def test_lines():
    importance = np.zeros(94)
    importance[30:62] = 1.0
    lines = layout(94, ends=[29, 61])
    found = chosen(importance, chunk_align="lines", layout=lines)
    assert found.chunk_bounds.tolist() == [0, 30, 62, 94]
    assert found.kept_ranges == ((0, 4), (30, 62), (92, 94))
    assert chosen(importance, layout=lines).chunk_bounds.tolist() == [0, 32, 64, 94]  # align "tokens"
    for other in (None, layout(95)):
        with pytest.raises(ShapeError, match="layout: wanted that of 94 tokens"):
            chosen(importance, chunk_align="lines", layout=other)


def test_a_share_of_lines_is_a_share_of_tokens():
    ends = [19, 39, 44, 49, 54, 59, 79, 99]
    importance = np.repeat(np.array([1, 1, 9, 8, 7, 6, 1, 1], np.float32), [20, 20, 5, 5, 5, 5, 20, 20])
    options = dict(chunk_align="lines", chunk_size=5, select_mode="chunk", layout=layout(100, ends))
    bounds = chosen(importance, **options, keep_ratio=0.1).chunk_bounds.tolist()
    assert {40, 45, 50, 55, 60} <= set(bounds), bounds
    for keep_ratio, last in ((0.1, 50), (0.11, 55), (0.2, 60)):
        found = chosen(importance, **options, keep_ratio=keep_ratio)
        assert found.kept_ranges == ((0, 4), (40, last), (98, 100))


def test_no_character_is_cut():
    texts = ["字".encode()[i : i + 1] for i in range(3)] * 100  # a character for three tokens
    importance = np.random.default_rng(1).random(300)
    cut = Layout(texts)
    for settings in ({"chunk_size": 7}, {"tail": 4}, {"protect": ((100, 101), (151, 152))}, {"select_mode": "chunk"}):
        found = chosen(importance, chunk_align="lines", layout=cut, protected=[(200, 202)], **settings)
        assert all(start % 3 == 0 and end % 3 == 0 for start, end in found.kept_ranges), settings
        assert {198, 199, 200, 201, 202, 203} <= set(found.kept.tolist()) and found.protected_n == 6
    later = chosen(importance, chunk_align="lines", layout=cut, first=100)
    assert later.kept[0] == 100 and all(end % 3 == 0 for _, end in later.kept_ranges)


def test_the_block_of_a_wanted_line_goes_first_among_equal_scores():
    functions = [b"def f():\n", *[b"    x\n"] * 3, b"\n", b"def g():\n", *[b"    y\n"] * 3, b"\n"]
    importance = np.array([1, 1, 1, 1, 0, 1, 1, 9, 1.05, 0], np.float32)
    options = dict(select_mode="chunk", chunk_size=1, keep_ratio=0.5, boost_first_n=0)
    code = chosen(importance, chunk_align="lines", layout=Layout(functions), **options)
    assert {5, 6, 7, 8} <= set(code.kept.tolist())
    twice = np.tile(importance, 3)
    twice[[17, 27]] = 1
    found = chosen(twice, chunk_align="lines", layout=Layout(functions * 3), **{**options, "keep_ratio": 0.16})
    assert found.kept_ranges == ((0, 4), (5, 9), (18, 19), (28, 30)), "the lines of 7 before 18"
    much_better = twice.copy()
    much_better[20:24] = 1.2
    found = chosen(much_better, chunk_align="lines", layout=Layout(functions * 3), **{**options, "keep_ratio": 0.16})
    assert found.kept_ranges == ((0, 4), (7, 8), (20, 24), (28, 30)), "no other line for one that is better"


def test_protected_tokens_are_a_part_of_the_share():
    importance = chunk_values(*range(10))
    found = chosen(importance, select_mode="chunk", protected=[(40, 72)])  # 32 of the 96 tokens of 3 of 10 chunks
    assert found.kept_ranges == ((0, 4), (40, 72), (256, 320)) and found.protected_n == 32
    assert {*range(40, 72)} <= set(found.forced.tolist())
    inside = chosen(importance, select_mode="chunk", protected=[(300, 310)])  # of the best chunk: nothing is lost by it
    assert inside.kept_ranges == chosen(importance, select_mode="chunk").kept_ranges
    part = chosen(importance, select_mode="chunk", protected=[(40, 41), (60, 61)])  # 94 tokens are wanting: 3 chunks
    assert part.kept_ranges == ((0, 4), (40, 41), (60, 61), (224, 320))
    more = chosen(importance, select_mode="chunk", keep_ratio=0.1, protected=[(32, 132)])
    assert more.kept_ranges == ((0, 4), (32, 132), (318, 320)), "more than the share by themselves"
    assert len(chosen(importance, select_mode="chunk", keep_ratio=1, protected=[(0, 9)]).kept) == 320


def test_protected_tokens_are_a_part_of_the_mass():
    importance = chunk_values(1, 8, 2, 9, *[0] * 6)  # of 20 the chunks 9 and 8 have 17, 0.85
    found = chosen(importance, protected=[(32, 64)])
    assert found.kept_ranges == ((0, 4), (32, 64), (96, 128), (318, 320))
    half = chosen(importance, protected=[(32, 48)])  # 4 of them
    assert half.kept_ranges == found.kept_ranges
    assert chosen(importance, protected=[(64, 96)]).kept_ranges == ((0, 4), (32, 128), (318, 320))
    assert chosen(importance, protected=[(32, 64)], cumulative_mass=0.3).kept_ranges == ((0, 4), (32, 64), (318, 320))


def test_protected_tokens_that_a_cache_holds_do_not_count():
    importance = chunk_values(*range(10))
    found = chosen(importance, first=64, select_mode="chunk", protected=[(0, 66), (500, 600)])
    assert found.protected_n == 2 and found.kept_ranges == ((64, 68), (224, 320))


def test_automatic_max_keep_is_of_mode_mass():
    importance = np.ones(4004, np.float32)
    by_share = chosen(importance, select_mode="chunk", keep_ratio=0.9)
    assert len(by_share.kept) == 3650 and by_share.capped_n == 0  # 114 of 126 chunks of 32, and the last two
    by_mass = chosen(importance)
    assert len(by_mass.kept) == 1986 and by_mass.capped_n == 1440  # 62 chunks and 2; 45 of the 107 chunks are left out
    assert len(chosen(importance, max_keep=0).kept) == 3426
    assert chosen(importance, select_mode="chunk", keep_ratio=0.9, max_keep=2000).capped_n == 1664


def test_further_turn_chooses_new_tokens_only():
    importance = np.concatenate([np.full(100, 50.0), chunk_values(1, 2, 9, 1, 1)])  # 100 tokens are held by the cache
    found = chosen(importance, first=100, cumulative_mass=0.6, protect=((90, 110),))
    assert found.chunk_bounds.tolist() == [100, 132, 164, 196, 228, 260]
    assert found.chunk_scores.tolist() == [1, 2, 9, 1, 1]
    assert found.kept_ranges == ((100, 110), (164, 196), (258, 260))
    assert not found.kept_all
    assert chosen(importance, first=100, keep_ratio=1).kept_ranges == ((100, 260),)
    assert chosen(importance, first=100, keep_ratio=1).kept_all
    assert chosen(importance, first=259).kept.tolist() == [259]
    assert chosen(importance, first=100, tail=10**6).kept_ranges == ((100, 260),)
    for first in -1, 260:
        with pytest.raises(ShapeError, match="chunks of"):
            chosen(importance, first=first)


def plain_select(importance: np.ndarray, config: SpecPrefillConfig, cut: Layout, first: int) -> list[int]:
    """The rules of `select` one chunk at a time, without its shortcuts."""
    num_tokens, new = len(importance), len(importance) - first
    by_lines = config.chunk_align == "lines"
    bounds = chunk_bounds(num_tokens, config.chunk_size, first, cut if by_lines else None).tolist()
    chunks = [range(a, b) for a, b in zip(bounds, bounds[1:], strict=False)]
    order = sorted(range(len(chunks)), key=lambda i: (-np.float32(importance[chunks[i]].mean()), i))
    forced = {*range(first, first + 4), *range(num_tokens - max(2, config.tail), num_tokens)}
    forced |= {t for start, end in config.protect for t in range(start, min(end, num_tokens))}
    forced = {t for t in forced if first <= t < num_tokens}

    def kept(count: int) -> set[int]:
        return forced.union(*(chunks[i] for i in order[:count]))

    if config.keep_ratio == 1:
        return list(range(first, num_tokens))
    if config.select_mode == "chunk":
        count = math.ceil(round(config.keep_ratio * len(chunks), 6))
        if by_lines:
            sizes = np.cumsum([0, *(len(chunks[i]) for i in order)])
            count = int(np.searchsorted(sizes, round(config.keep_ratio * new, 6)))
    else:
        count, total = 1, importance[first:].sum()
        while sum(importance[chunks[i]].sum() for i in order[:count]) < config.cumulative_mass * total - 1e-6 * total:
            count += 1
    while len(kept(count)) < min(128, max(4, new / 10)) and count < len(chunks):
        count += 1
    while config.max_keep and len(kept(count)) > config.max_keep and count:
        count -= 1
    return sorted(kept(count))


def test_random_choices_follow_the_rules():
    random = np.random.default_rng(20260)
    for _ in range(300):
        num_tokens = int(random.choice([1, 2, 5, 6, 31, 32, 33, 64, 100, 257, 900]))
        first = int(random.integers(0, num_tokens)) if random.random() < 0.3 else 0
        # few different values make ties; an exponential has outliers, as attention has
        ties = random.random() < 0.3
        importance = random.integers(0, 3, num_tokens) if ties else random.exponential(1, num_tokens) ** 3
        importance = importance.astype(np.float32)
        start = int(random.integers(0, 500))
        config = SpecPrefillConfig(
            chunk_size=int(random.choice([1, 3, 16, 32, 50, 2000])),
            chunk_align=str(random.choice(["tokens", "lines"])),
            select_mode=str(random.choice(["mass", "chunk"])),
            cumulative_mass=float(random.random()),
            keep_ratio=float(random.choice([0.0, 0.07, 0.3, 0.99, 1.0])),
            max_keep=int(random.choice([0, 1, 10, 100, 300])),
            tail=int(random.choice([0, 1, 50, 1000])),
            protect=((start, start + int(random.integers(1, 100))),) if random.random() < 0.3 else (),
        )
        ends = random.choice(num_tokens, num_tokens // 10, replace=False).tolist()
        cut = layout(num_tokens, ends)
        found = select(importance, config, layout=cut, first=first)
        kept = found.kept.tolist()
        where = f"{config}, {num_tokens} tokens from {first}"

        assert kept == sorted(set(kept)) and kept[0] >= first and kept[-1] == num_tokens - 1, where
        assert set(found.forced.tolist()) <= set(kept), where
        assert {*range(first, min(first + 4, num_tokens)), num_tokens - 1} <= set(found.forced.tolist()), where
        assert [t for a, b in found.kept_ranges for t in range(a, b)] == kept, where
        assert all(b < c for (_, b), (c, _) in zip(found.kept_ranges, found.kept_ranges[1:], strict=False)), where
        if config.max_keep and config.keep_ratio < 1:
            assert len(kept) <= max(config.max_keep, len(found.forced)), where
        again = select(importance.copy(), config, layout=cut, first=first)
        assert again.kept.tolist() == kept and again.kept_ranges == found.kept_ranges, where
        assert kept == plain_select(importance.astype(np.float64), config, cut, first), where
