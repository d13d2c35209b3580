"""How many tokens are drafted, by given times and given acceptance: no clock is looked at."""

import random

import pytest

from vkprefill.drafting.depth import FIRST_WAIT, LEAST_COST, Depth

# Seconds of rounds with so many drafted tokens.
CHEAP = [1.0, 1.05, 1.1, 1.15]  # rows at the price of one, and drafts that cost nothing
DEAR = [1.0, 1.6, 2.2, 2.8]  # each draft costs more than half a step


class Run:
    """Rounds of a policy on a file where the i-th drafted token is accepted with a chance of its own."""

    def __init__(self, depth: Depth, times: list[float], chances: list[float], seed: int = 1) -> None:
        self.depth, self.times, self.chances, self.random = depth, times, chances, random.Random(seed)
        self.chosen: list[int] = []
        self.seconds = self.tokens = 0.0

    def rounds(self, count: int) -> "Run":
        for _ in range(count):
            n = self.depth.choose()
            accepted = 0
            while accepted < n and self.random.random() < self.chances[accepted]:
                accepted += 1
            self.depth.note(n, accepted, self.times[n])
            self.chosen.append(n)
            self.seconds += self.times[n]
            self.tokens += accepted + 1
        return self

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


def test_begins_at_the_most_and_stays_where_it_pays():
    run = Run(Depth(3), CHEAP, [0.9, 0.9, 0.9]).rounds(400)
    assert run.chosen[:2] == [3, 3]
    assert run.chosen.count(3) >= 390
    assert run.speed > 2.7


def test_goes_down_to_none_where_nothing_is_accepted():
    run = Run(Depth(3), DEAR, [0.0, 0.0, 0.0]).rounds(400)
    assert run.chosen[:2] == [3, 3] and run.chosen[10] == 0
    assert run.chosen.count(0) >= 390


@pytest.mark.parametrize("seed", range(5))
def test_costs_little_where_it_does_not_pay(seed):
    """Of a long answer less than 2 %: a few rounds at first, and trials ever more seldom."""
    assert Run(Depth(3), DEAR, [0.3, 0.3, 0.3], seed).rounds(1000).speed > 0.98


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("times", "chances", "best"),
    [
        ([1.0, 1.2, 1.9, 2.6], [0.9, 0.5, 0.5], 1),
        ([1.0, 1.2, 1.4, 2.4], [0.9, 0.9, 0.6], 2),
        ([1.0, 1.1, 1.2, 1.3], [0.8, 0.8, 0.8], 3),
        ([1.0, 1.7, 1.8, 1.9], [0.6, 0.95, 0.95], 3),  # one draft alone would not pay
    ],
)
def test_finds_the_depth_that_is_fastest(times, chances, best, seed):
    run = Run(Depth(3), times, chances, seed).rounds(1500)
    late = run.chosen[300:]
    assert late.count(best) > 0.6 * len(late), [late.count(n) for n in range(4)]
    tokens = [1.0]
    for chance in chances:
        tokens.append(tokens[-1] * chance)
    assert run.speed > 0.95 * sum(tokens[: best + 1]) / times[best]


@pytest.mark.parametrize("seed", range(3))
def test_a_gain_of_a_hundredth_is_none(seed):
    """A draft of which one in ten is right at a cost of 0.09: a run of misses would cost more."""
    run = Run(Depth(1), [1.0, 1.09], [0.1], seed).rounds(600)
    assert run.chosen.count(0) > 450 and run.speed > 0.99


def test_lowers_by_measurement_only():
    """Acceptance alone says nothing, nor do times of one kind of round."""
    depth = Depth(3)
    for _ in range(2):
        depth.note(3, 0, 5.0)
        assert depth.depth == 3
    for _ in range(3):  # plain rounds where there is nothing to draft from
        depth.note(0, 0, 1.0)
    assert depth.depth == 0
    looked_up = Depth(3)
    for _ in range(100):
        looked_up.note(0, 0, 1.0)
        assert looked_up.choose() == 3, "no draft was there to be measured"


def test_the_first_round_of_a_kind_is_not_counted():
    """It may have compiled pipelines."""
    depth = Depth(2)
    for n, seconds in ((2, 50.0), (2, 1.1), (0, 50.0), (0, 1.0), (2, 1.1)):
        depth.note(n, n, seconds)
    assert depth.depth == 2


def test_tries_again_and_finds_that_it_pays_now():
    run = Run(Depth(3), DEAR, [0.0] * 3).rounds(30)
    assert run.chosen[-1] == 0
    run.times, run.chances = CHEAP, [0.95] * 3
    run.rounds(3 * FIRST_WAIT)
    assert run.chosen[-10:].count(3) >= 9
    run.chances, run.times = [0.0] * 3, DEAR
    run.rounds(40)
    assert run.chosen[-1] == 0


# Seconds of a round with n drafted tokens, of a machine that is busy with other work or measures nonsense.
WRONG_TIMES = {
    "plain rounds slow": lambda n, any_number: 50.0 if n == 0 else 1.0,
    "the more drafts the faster": lambda n, any_number: 10.0 / (n + 1),
    "all the same": lambda n, any_number: 1.0,
    "noise": lambda n, any_number: any_number.choice([1.0, 1.0, 3.0, 8.0]),
}


@pytest.mark.parametrize("found", [7, 2], ids="found {}".format)
@pytest.mark.parametrize("most", [1, 3, 7])
@pytest.mark.parametrize("seconds", WRONG_TIMES.values(), ids=WRONG_TIMES)
def test_what_is_never_accepted_is_given_up_whatever_was_timed(seconds, most, found):
    """By counts: in an answer of 300 tokens a hundred are never drafted, and then hardly any. found: tokens of a
    lookup, which may always be fewer than asked for."""
    for seed in range(5):
        depth, any_number, drafted = Depth(most), random.Random(seed), []
        for _ in range(1000):
            drafted.append(min(found, depth.choose()))
            depth.note(drafted[-1], 0, seconds(drafted[-1], any_number))
        assert sum(drafted[:300]) < 75 and sum(drafted[300:]) < 35, (sum(drafted[:300]), sum(drafted[300:]))


def test_no_gain_below_the_least_cost_of_a_row():
    """Accepted now and then, at rounds that seem to cost nothing."""
    run = Run(Depth(7), [1.0] * 8, [LEAST_COST / 2] * 7).rounds(1000)
    assert run.chosen[100:].count(0) > 800


def test_trials_become_more_seldom():
    chosen = Run(Depth(3), DEAR, [0.0] * 3).rounds(2000).chosen
    trials = [i for i, n in enumerate(chosen) if n == 3][4:]
    gaps = [b - a for a, b in zip(trials, trials[1:], strict=False)]
    assert gaps == sorted(gaps) and gaps[-1] == 256 + 1


def test_one_slow_round_changes_nothing():
    run = Run(Depth(3), CHEAP, [0.9] * 3).rounds(50)
    run.depth.note(3, 0, 100.0)
    assert run.depth.choose() == 3


@pytest.mark.parametrize("most", [1, 7])
def test_not_adaptive(most):
    chosen = Run(Depth(most, adaptive=False), [1.0 + n for n in range(8)], [0.0] * 7).rounds(50).chosen
    assert chosen == [most] * 50


def test_no_depth_that_would_be_dropped():
    run = Run(Depth(3, least=3), [1.0, 1.2, 1.9, 2.6], [0.5, 0.5, 0.5]).rounds(300)
    assert set(run.chosen) == {0, 3}
    assert run.chosen[-1] == 0


def test_plain_steps_are_timed_again():
    """A long context makes them slower, while drafts are all that is run."""
    chosen = Run(Depth(3), CHEAP, [0.9] * 3).rounds(1100).chosen
    assert chosen.count(0) == 2 + 4
