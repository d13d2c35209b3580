"""Importance, windows, normalisation, boosts, chunks and the choice, against values worked out by hand."""

import math

import numpy as np
import pytest

from vkprefill.errors import ShapeError, VkPrefillError
from vkprefill.specprefill.selection import (
    Selection,
    boost,
    chunk_bounds,
    importance_from_rows,
    line_ends,
    normalise,
    pool,
    select,
    windows,
)
from vkprefill.specprefill.settings import SpecPrefillConfig

HOWS = ("minmax", "percentile", "zscore")


def chunk_values(*scores: float, size: int = 32) -> np.ndarray:
    """Importance whose chunks of `size` tokens have these means."""
    return np.repeat(np.array(scores, np.float32), size)


def chosen(importance: np.ndarray, *, first: int = 0, line_ends: list[int] | None = None, **settings) -> Selection:
    return select(importance, SpecPrefillConfig(**settings), first=first, line_ends=line_ends)


# pool


def test_pool_divides_edges_by_what_is_there():
    assert pool(np.array([3.0, 6.0, 0.0, 9.0]), 3).tolist() == [4.5, 3.0, 5.0, 4.5]
    assert pool(np.array([[1.0, 3.0], [4.0, 8.0]]), 3).tolist() == [[2.0, 2.0], [6.0, 6.0]]
    assert pool(np.array([1.0, 2.0, 6.0]), 13).tolist() == [3.0, 3.0, 3.0]
    assert pool(np.array([1.0, 2.0, 6.0]), 1).tolist() == [1.0, 2.0, 6.0]
    assert pool(np.array([5.0]), 13).tolist() == [5.0]


def test_pool_against_plain_averages():
    row = np.random.default_rng(1).random(40)
    expected = [row[max(0, t - 6) : t + 7].mean() for t in range(40)]
    np.testing.assert_allclose(pool(row, 13), expected, rtol=1e-12)


@pytest.mark.parametrize("rows, size", [(np.zeros(4), 2), (np.zeros(4), 0), (np.zeros(0), 3), (np.float32(1), 3)])
def test_pool_refuses(rows, size):
    with pytest.raises(ShapeError, match="pool"):
        pool(rows, size)


# importance


def test_importance_is_mean_of_maximum_of_maximum():
    first = np.array([[[1, 0, 2, 9], [0, 3, 1, 9]], [[2, 1, 0, 9], [0, 0, 4, 9]]], np.float32)  # [2 layers, 2 heads, 4]
    second = np.array([[[0, 1, 0]], [[4, 0, 0]]], np.float32)  # another number of heads and keys
    found = importance_from_rows([first, second], 3, 1)
    assert found.tolist() == [3.0, 2.0, 2.0] and found.dtype == np.float32


def test_importance_pools_rows_before_the_maximum():
    rows = np.array([[[6, 0, 0], [0, 0, 6]]], np.float32)
    # pooled: 3 2 0 and 0 2 3; pooling the maximum 6 0 6 would give 3 4 3
    assert importance_from_rows([rows], 3, 3).tolist() == [3.0, 2.0, 3.0]


def test_importance_pools_prompt_keys_only():
    rows = np.array([[[2, 4, 90]]], np.float32)  # the last key is a lookahead token
    assert importance_from_rows([rows], 2, 3).tolist() == [3.0, 3.0]


def test_importance_refuses():
    rows = np.ones((1, 1, 4), np.float32)
    for steps, num_tokens in ([], 4), ([rows], 5), ([rows], 0), ([rows[0]], 4), ([rows[:, :0]], 4):
        with pytest.raises(ShapeError, match="rows"):
            importance_from_rows(steps, num_tokens, 1)
    rows[0, 0, 2] = np.nan
    with pytest.raises(VkPrefillError, match="attention row: token 2 has nan"):
        importance_from_rows([rows], 4, 1)
    assert importance_from_rows([rows], 2, 1).tolist() == [1.0, 1.0]  # not a prompt key


# windows


def test_windows_of_the_specified_example():
    assert windows(4471, 2000) == [
        (0, 2000, 0, 1000),
        (1000, 3000, 1000, 2000),
        (2000, 4000, 2000, 3000),
        (3000, 4471, 3000, 4471),
    ]


@pytest.mark.parametrize(
    "num_tokens, window, expected",
    [
        (4000, 2000, [(0, 2000, 0, 1000), (1000, 3000, 1000, 2000), (2000, 4000, 2000, 4000)]),
        (2001, 2000, [(0, 2000, 0, 1000), (1000, 2001, 1000, 2001)]),
        (2000, 2000, [(0, 2000, 0, 2000)]),
        (5, 0, [(0, 5, 0, 5)]),
        (1, 2000, [(0, 1, 0, 1)]),
        (6, 5, [(0, 5, 0, 2), (2, 6, 2, 6)]),  # odd: stride 2
        (3, 1, [(0, 1, 0, 1), (1, 2, 1, 2), (2, 3, 2, 3)]),
    ],
)
def test_windows(num_tokens, window, expected):
    assert windows(num_tokens, window) == expected


def test_windows_score_every_token_once():
    for num_tokens in range(1, 40):
        for window in range(0, 45):
            found = windows(num_tokens, window)
            assert [t for _, _, start, end in found for t in range(start, end)] == list(range(num_tokens))
            assert all(start <= score_start and score_end <= end for start, end, score_start, score_end in found)
            assert [end == num_tokens for _, end, _, _ in found] == [False] * (len(found) - 1) + [True]


def test_windows_refuse():
    for arguments in (0, 10), (10, -1):
        with pytest.raises(ShapeError, match="windows"):
            windows(*arguments)


# normalise and boost


def test_minmax():
    assert normalise(np.array([2.0, 6.0, 3.0]), "minmax").tolist() == [0.0, 1.0, 0.25]


def test_percentile_gives_equal_values_their_mean_rank():
    # ranks from 0: 1 -> 0; 5, 5, 5 -> 1, 2, 3, mean 2; 7 -> 4
    assert normalise(np.array([5.0, 1.0, 5.0, 7.0, 5.0]), "percentile").tolist() == [0.5, 0.0, 0.5, 1.0, 0.5]


def test_zscore():
    # mean 2, standard deviation of all four values sqrt(3): 1 + (1 - 2) / sqrt(3), 1 + (5 - 2) / sqrt(3)
    low, high = 1 - 1 / math.sqrt(3), 1 + math.sqrt(3)
    np.testing.assert_allclose(normalise(np.array([1.0, 1, 1, 5]), "zscore"), [low, low, low, high], rtol=1e-6)
    # mean 3, deviation sqrt(3): 0 is 1 - sqrt(3) < 0
    np.testing.assert_allclose(normalise(np.array([0.0, 4, 4, 4]), "zscore")[0], 0)


@pytest.mark.parametrize("how", HOWS)
def test_constant_importance_is_ones(how):
    for value in 0.0, 0.1, 1e-30, 7.0:
        for num_tokens in 1, 2, 33:
            assert normalise(np.full(num_tokens, value, np.float32), how).tolist() == [1.0] * num_tokens


@pytest.mark.parametrize("how", HOWS)
def test_normalised_is_finite_at_any_scale(how):
    values = np.random.default_rng(2).random(50) + 0.5
    expected = normalise(values, how)
    for scale in 1e-200, 1e-30, 1e30:
        np.testing.assert_allclose(normalise(values * scale, how), expected, rtol=1e-5, atol=1e-7)
    assert expected.dtype == np.float32 and expected.min() >= 0


def test_normalise_refuses_unknown_ways():
    with pytest.raises(ShapeError, match="found softmax, wanted minmax"):
        normalise(np.array([1.0, 2.0]), "softmax")


def test_boost():
    config = SpecPrefillConfig(boost_first_n=2, boost_first_mult=2, boost_last_n=3, boost_last_mult=3)
    assert boost(np.ones(6), config).tolist() == [2.0, 2.0, 1.0, 3.0, 3.0, 3.0]
    assert boost(np.ones(4), config).tolist() == [2.0, 6.0, 3.0, 3.0]  # overlap: both
    assert boost(np.ones(1), config).tolist() == [6.0]


def test_boost_of_no_tokens():
    config = SpecPrefillConfig(boost_first_n=0, boost_first_mult=2, boost_last_n=0, boost_last_mult=3)
    values = np.ones(4, np.float32)
    assert boost(values, config).tolist() == [1.0] * 4


def test_boost_of_the_defaults_leaves_its_input():
    values = np.ones(150, np.float32)
    found = boost(values, SpecPrefillConfig())
    assert values.tolist() == [1.0] * 150
    assert found[:22].tolist() == [1.5] * 22  # the last 128 start at 22
    np.testing.assert_allclose(found[22:64], 1.95, rtol=1e-6)
    np.testing.assert_allclose(found[64:], 1.3, rtol=1e-6)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_importance_that_is_not_finite_is_an_error(wrong):
    values = np.ones(40, np.float32)
    values[17] = wrong
    config = SpecPrefillConfig(keep_ratio=1)  # even where nothing is to choose
    for call in (lambda: normalise(values, "minmax"), lambda: boost(values, config), lambda: select(values, config)):
        with pytest.raises(VkPrefillError, match=f"importance: token 17 has {wrong}, wanted a finite number"):
            call()


def test_negative_importance_is_an_error():
    with pytest.raises(VkPrefillError, match="importance: token 1 has -0.5, wanted at least 0"):
        chosen(np.array([1.0, -0.5]))


@pytest.mark.parametrize("values", [np.zeros(0), np.zeros((2, 2))])
def test_importance_of_the_wrong_shape(values):
    config = SpecPrefillConfig()
    for call in (lambda: normalise(values, "minmax"), lambda: boost(values, config), lambda: select(values, config)):
        with pytest.raises(ShapeError, match="importance: found shape"):
            call()


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


@pytest.mark.parametrize(
    "ends, expected",
    [
        ([], [0, 32, 64, 80]),
        ([23, 71], [0, 24, 72, 80]),  # places 24 and 72 are 8 tokens away
        ([22, 72], [0, 32, 64, 80]),  # 9 away
        ([29, 35], [0, 30, 64, 80]),  # 30 is nearer than 36
        ([28, 34], [0, 29, 64, 80]),  # 29 and 35, as near: the earlier
        ([31, 63], [0, 32, 64, 80]),
        ([63, 33, 33], [0, 34, 64, 80]),
        ([-1, 79, 200], [0, 32, 64, 80]),
    ],
)
def test_line_ends_move_borders(ends, expected):
    assert chunk_bounds(80, 32, ends).tolist() == expected


def test_borders_that_meet_or_reach_an_end_are_fewer():
    assert chunk_bounds(40, 8, [15]).tolist() == [0, 16, 32, 40]  # 8, 16 and 24 all move to 16
    assert chunk_bounds(40, 32, [39]).tolist() == [0, 40]  # the end of the prompt ends a line
    assert chunk_bounds(60, 8, [19], first=20).tolist() == [20, 36, 44, 52, 60]  # 28 moves to 20, where chunks start


@pytest.mark.parametrize("arguments", [(0, 32, None, 0), (10, 0, None, 0), (10, 32, None, 10), (10, 32, None, -1)])
def test_chunk_bounds_refuse(arguments):
    with pytest.raises(ShapeError, match="chunks of"):
        chunk_bounds(*arguments)


def test_line_ends_of_token_bytes():
    assert line_ends([b"a", b";\n", b"\n\n", b"\n  ", b"", b"b"]).tolist() == [1, 2]


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
    importance = np.zeros(96)
    importance[30:62] = 1.0
    found = chosen(importance, chunk_align="lines", line_ends=[29, 61])
    assert found.chunk_bounds.tolist() == [0, 30, 62, 96]
    assert found.kept_ranges == ((0, 4), (30, 62), (94, 96))
    assert chosen(importance, line_ends=[29, 61]).chunk_bounds.tolist() == [0, 32, 64, 96]  # align "tokens"
    with pytest.raises(ShapeError, match="line_ends: found none"):
        chosen(importance, chunk_align="lines")


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


def plain_select(importance: np.ndarray, config: SpecPrefillConfig, ends: list[int], first: int) -> list[int]:
    """The rules of `select` one chunk at a time, without its shortcuts."""
    num_tokens, new = len(importance), len(importance) - first
    borders = ends if config.chunk_align == "lines" else None
    bounds = chunk_bounds(num_tokens, config.chunk_size, borders, first).tolist()
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
        found = select(importance, config, line_ends=ends, first=first)
        kept = found.kept.tolist()
        where = f"{config}, {num_tokens} tokens from {first}"

        assert kept == sorted(set(kept)) and kept[0] >= first and kept[-1] == num_tokens - 1, where
        assert set(found.forced.tolist()) <= set(kept), where
        assert {*range(first, min(first + 4, num_tokens)), num_tokens - 1} <= set(found.forced.tolist()), where
        assert [t for a, b in found.kept_ranges for t in range(a, b)] == kept, where
        assert all(b < c for (_, b), (c, _) in zip(found.kept_ranges, found.kept_ranges[1:], strict=False)), where
        if config.max_keep and config.keep_ratio < 1:
            assert len(kept) <= max(config.max_keep, len(found.forced)), where
        again = select(importance.copy(), config, line_ends=ends[::-1], first=first)
        assert again.kept.tolist() == kept and again.kept_ranges == found.kept_ranges, where
        assert kept == plain_select(importance.astype(np.float64), config, ends, first), where
