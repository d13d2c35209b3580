"""Importance from rows, windows, normalisation and boosts, against values worked out by hand."""

import math

import numpy as np
import pytest

from vkprefill.errors import ShapeError, VkPrefillError
from vkprefill.specprefill.selection import (
    boost,
    importance_from_rows,
    normalise,
    pool,
    select,
    windows,
)
from vkprefill.specprefill.settings import SpecPrefillConfig

HOWS = ("minmax", "percentile", "zscore")

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
        select(np.array([1.0, -0.5]), SpecPrefillConfig(chunk_align="tokens"))


@pytest.mark.parametrize("values", [np.zeros(0), np.zeros((2, 2))])
def test_importance_of_the_wrong_shape(values):
    config = SpecPrefillConfig()
    for call in (lambda: normalise(values, "minmax"), lambda: boost(values, config), lambda: select(values, config)):
        with pytest.raises(ShapeError, match="importance: found shape"):
            call()
