"""Settings, their defaults and ranges; the sampler's distributions against hand-computed ones."""

import math

import numpy as np
import pytest

from vkprefill.errors import GGUFError, RequestError, ShapeError, VkPrefillError
from vkprefill.generation.sampling import Sampler, SamplingConfig

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "presence_penalty": 0.0, "seed": 1}
PROBABILITIES = {7: 0.4, 3: 0.3, 9: 0.2, 1: 0.1}  # token id -> probability at temperature 1


def candidates(probabilities: dict[int, float] = PROBABILITIES) -> tuple[np.ndarray, np.ndarray]:
    values = np.log(list(probabilities.values())) + 3.25  # softmax does not see a constant
    return np.array(list(probabilities), np.int32), values.astype(np.float32)


def frequencies(num_draws: int, **settings: float) -> dict[int, float]:
    sampler = Sampler(SamplingConfig(**{**OFF, **settings}))
    drawn = [sampler.sample(*candidates()) for _ in range(num_draws)]
    return {token_id: drawn.count(token_id) / num_draws for token_id in set(drawn)}


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({}, {7: 0.4, 3: 0.3, 9: 0.2, 1: 0.1}),
        ({"top_k": 2}, {7: 4 / 7, 3: 3 / 7}),
        ({"top_k": 10}, {7: 0.4, 3: 0.3, 9: 0.2, 1: 0.1}),
        ({"top_p": 0.39}, {7: 1.0}),
        ({"top_p": 0.41}, {7: 4 / 7, 3: 3 / 7}),
        ({"top_p": 0.69}, {7: 4 / 7, 3: 3 / 7}),
        ({"top_p": 0.71}, {7: 4 / 9, 3: 3 / 9, 9: 2 / 9}),
        ({"top_p": 0.0}, {7: 1.0}),
        ({"min_p": 0.49}, {7: 4 / 9, 3: 3 / 9, 9: 2 / 9}),
        ({"min_p": 0.51}, {7: 4 / 7, 3: 3 / 7}),
        ({"min_p": 1.0}, {7: 1.0}),
        ({"temperature": 0.5}, {7: 16 / 30, 3: 9 / 30, 9: 4 / 30, 1: 1 / 30}),
        # top-k first: of 4/7 and 3/7, top-p 0.56 keeps one; of the four it would keep two
        ({"top_k": 2, "top_p": 0.56}, {7: 1.0}),
        # temperature last: at 0.5 top-p 0.5 would keep one
        ({"temperature": 0.5, "top_p": 0.5}, {7: 16 / 25, 3: 9 / 25}),
        # min-p after top-p, and before temperature
        ({"temperature": 0.5, "min_p": 0.4, "top_p": 0.8}, {7: 16 / 29, 3: 9 / 29, 9: 4 / 29}),
    ],
)
def test_distribution(settings, expected):
    num_draws = 4000
    found = frequencies(num_draws, **settings)
    assert set(found) == set(expected)
    # chi-square over at most 3 degrees of freedom: 16.27 is passed with probability 0.001; the seed is fixed
    chi_square = sum(num_draws * (found[i] - p) ** 2 / p for i, p in expected.items())
    assert chi_square < 16.27


def test_draws_follow_the_generator():
    """One number of PCG64 a token; its place among the cumulative probabilities is the token."""
    sampler = Sampler(SamplingConfig(**{**OFF, "seed": 12345}))
    numbers = np.random.Generator(np.random.PCG64(12345)).random(200)
    cumulative = np.cumsum([0.4, 0.3, 0.2, 0.1])
    expected = [[7, 3, 9, 1][np.searchsorted(cumulative, u)] for u in numbers]
    assert [sampler.sample(*candidates()) for _ in range(200)] == expected


def test_same_seed_same_tokens():
    def run(seed: int | None) -> list[int]:
        sampler = Sampler(SamplingConfig(**{**OFF, "seed": seed}))
        return [sampler.sample(*candidates()) for _ in range(60)]

    assert run(5) == run(5)
    assert run(5) != run(6)
    assert run(None) != run(None)


def test_a_new_seed_can_be_repeated():
    first = Sampler(SamplingConfig(**{**OFF, "seed": None}))
    again = Sampler(SamplingConfig(**{**OFF, "seed": first.seed}))
    assert [first.sample(*candidates()) for _ in range(60)] == [again.sample(*candidates()) for _ in range(60)]


def test_order_of_candidates_does_not_matter():
    token_ids, logits = candidates({5: 0.3, 2: 0.3, 8: 0.3, 4: 0.1})
    reference = Sampler(SamplingConfig(**{**OFF, "top_k": 2}))
    shuffled = Sampler(SamplingConfig(**{**OFF, "top_k": 2}))
    order = np.array([3, 2, 0, 1])
    for _ in range(50):
        token_id = reference.sample(token_ids, logits)
        assert token_id in (2, 5)  # of equal logits the lowest ids are kept
        assert shuffled.sample(token_ids[order], logits[order]) == token_id


def test_whole_vocabulary():
    logits = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    token_ids = np.arange(5000)
    best = np.argsort(-logits)[:100]
    full, few = (Sampler(SamplingConfig(**{**OFF, "top_k": 100})) for _ in range(2))
    for _ in range(20):
        assert full.sample(token_ids, logits) == few.sample(token_ids[best], logits[best])


def test_greedy_takes_the_lowest_of_equals():
    sampler = Sampler(SamplingConfig(**{**OFF, "temperature": 0.0, "top_k": 40}))
    assert sampler.sample([9, 4, 6], np.array([2.0, 2.0, 1.0], np.float32)) == 4
    assert sampler.sample([9], np.array([-1.0], np.float32)) == 9


@pytest.mark.parametrize("temperature", [1e-6, 5e-324])
@pytest.mark.parametrize("logits", [[1e30, 0.0, -1e30], [3e38, -3e38, 0.0]])
def test_extreme_logits(logits, temperature):
    sampler = Sampler(SamplingConfig(**{**OFF, "temperature": temperature, "top_p": 0.9}))
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        assert sampler.sample([1, 2, 3], np.array(logits, np.float32)) == 1


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({"temperature": 0.0}, 1),
        ({"top_k": 1}, 1),
        ({"top_k": 20}, 20),
        ({"top_k": 64}, 64),
        ({"top_k": 65}, None),
        ({"top_k": 0}, None),
    ],
)
def test_num_candidates(settings, expected):
    assert Sampler(SamplingConfig(**{**OFF, **settings})).num_candidates == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite(temperature, value):
    sampler = Sampler(SamplingConfig(**{**OFF, "temperature": temperature}))
    with pytest.raises(VkPrefillError, match=f"^logits: token 17 has {value}, wanted a finite number$"):
        sampler.sample([4, 17], np.array([1.0, value], np.float32))


def test_candidates_that_do_not_match():
    sampler = Sampler(SamplingConfig(**OFF))
    with pytest.raises(ShapeError, match=r"token ids \(2,\), logits \(3,\)"):
        sampler.sample([1, 2], [0.0, 0.0, 0.0])
    with pytest.raises(ShapeError):
        sampler.sample([], [])


# ---- settings


@pytest.mark.parametrize(
    "settings, error",
    [
        ({"temperature": -0.1}, "temperature: found -0.1, wanted a number from 0 to 100"),
        ({"temperature": math.nan}, "temperature: found nan, wanted a number from 0 to 100"),
        ({"temperature": math.inf}, "temperature: found inf, wanted a number from 0 to 100"),
        ({"temperature": "hot"}, "temperature: found 'hot', wanted a number from 0 to 100"),
        ({"top_k": -1}, "top_k: found -1, wanted a whole number from 0 to 2147483647"),
        ({"top_k": 2.0}, "top_k: found 2.0, wanted a whole number from 0 to 2147483647"),
        ({"top_k": True}, "top_k: found True, wanted a whole number from 0 to 2147483647"),
        ({"top_p": 1.5}, "top_p: found 1.5, wanted a number from 0 to 1"),
        ({"min_p": -1}, "min_p: found -1, wanted a number from 0 to 1"),
        ({"presence_penalty": 2.5}, "presence_penalty: found 2.5, wanted a number from -2 to 2"),
        ({"seed": -1}, "seed: found -1, wanted a whole number from 0 to 18446744073709551615"),
    ],
)
def test_ranges(settings, error):
    with pytest.raises(RequestError) as caught:
        SamplingConfig(**settings)
    assert str(caught.value) == error


def test_numpy_numbers_are_numbers():
    config = SamplingConfig(temperature=np.float32(0.5), top_k=np.int64(3), seed=np.uint64(7))
    assert Sampler(config.resolve({}, thinking=True)).num_candidates == 3


def test_defaults_of_the_card():
    assert SamplingConfig().resolve({}, thinking=True) == SamplingConfig(1.0, 20, 0.95, 0.0, 1.5)
    assert SamplingConfig().resolve({}, thinking=False) == SamplingConfig(0.7, 20, 0.8, 0.0, 1.5)


def test_settings_before_file_before_card():
    metadata = {"general.sampling.temp": float(np.float32(0.6)), "general.sampling.top_k": 40}
    config = SamplingConfig(top_k=5, seed=3).resolve(metadata, thinking=True)
    assert config == SamplingConfig(0.6, 5, 0.95, 0.0, 1.5, seed=3)
    metadata = {"general.sampling.top_p": 0.5, "general.sampling.min_p": 0.25}
    assert SamplingConfig().resolve(metadata, thinking=False) == SamplingConfig(0.7, 20, 0.5, 0.25, 1.5)


def test_greedy_has_no_penalty_unless_set():
    assert SamplingConfig(temperature=0).resolve({}, thinking=True).presence_penalty == 0
    assert SamplingConfig().resolve({"general.sampling.temp": 0.0}, thinking=True).presence_penalty == 0
    assert SamplingConfig(temperature=0, presence_penalty=1).resolve({}, thinking=True).presence_penalty == 1


@pytest.mark.parametrize(
    "key, value, wanted",
    [
        ("general.sampling.temp", -1.0, "a number from 0 to 100"),
        ("general.sampling.temp", "1", "a number from 0 to 100"),
        ("general.sampling.top_k", 1.5, "a whole number from 0 to 2147483647"),
        ("general.sampling.min_p", math.nan, "a number from 0 to 1"),
    ],
)
def test_bad_keys_of_the_file(key, value, wanted):
    with pytest.raises(GGUFError) as caught:
        SamplingConfig().resolve({key: value}, thinking=True)
    assert str(caught.value) == f"{key}: found {value!r}, wanted {wanted}"


def test_sampler_wants_resolved_settings():
    with pytest.raises(RequestError, match="^temperature: found None, wanted a number from 0 to 100$"):
        Sampler(SamplingConfig())
