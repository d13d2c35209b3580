"""Whose turn it is, with a clock that the test moves."""

from collections import Counter

import pytest

from vkprefill.server.engine.turns import HEAD_START_S, Turn, Turns


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """The seconds that turns see, in a list of one."""
    now = [100.0]
    monkeypatch.setattr("vkprefill.server.engine.turns.perf_counter", lambda: now[0])
    return now


def run(turns: Turns, clock: list[float], seconds: dict[Turn, float]) -> Turn:
    """One slice, of as many seconds as its turn takes."""
    turn = turns.next()
    with turns.slice(turn):
        clock[0] += seconds[turn]
    return turn


def begun(turns: Turns, count: int) -> list[Turn]:
    """Turns that have given back their head start."""
    made = [Turn() for _ in range(count)]
    for turn in made:
        turns.begin(turn)
        turn.begun = True
    return made


def test_shares_are_equal_whatever_a_slice_takes(clock):
    turns = Turns()
    long, short, shorter = begun(turns, 3)
    for _ in range(3000):
        run(turns, clock, {long: 0.9, short: 0.2, shorter: 0.05})
    shares = [turn.own_s / (clock[0] - 100) for turn in (long, short, shorter)]
    assert all(abs(share - 1 / 3) < 0.02 for share in shares)
    assert long.slices < short.slices < shorter.slices
    own_s, wait_s = turns.own_and_wait_s(long)
    assert own_s == pytest.approx(long.own_s) and own_s + wait_s == pytest.approx(clock[0] - 100)


@pytest.mark.parametrize("needed", [1, 3, 8])
def test_one_that_begins_is_next_until_its_first_word(clock, needed):
    """As long as that takes no longer than the head start; what it was lent it gives back."""
    turns = Turns()
    first, second = begun(turns, 2)
    for _ in range(50):
        run(turns, clock, {first: 0.5, second: 0.5})
    new = Turn()
    turns.begin(new)
    seconds = {first: 0.5, second: 0.5, new: 0.1}
    for _ in range(needed):
        assert run(turns, clock, seconds) is new
    new.begun = True
    for _ in range(300):
        run(turns, clock, seconds)
    own = [turn.own_s for turn in (first, second)]
    since = sum(own) - 25
    assert abs(new.own_s - since / 2) < 2 * HEAD_START_S, "an equal share from then on"


def test_one_that_begins_beside_a_prompt_that_is_read(clock):
    """However many slices it needs within the head start, and though the other has no word said yet either."""
    turns, reads, new = Turns(), Turn(), Turn()
    seconds = {reads: 0.9, new: 0.2}
    turns.begin(reads)
    for _ in range(3):
        run(turns, clock, seconds)
    turns.begin(new)
    assert [run(turns, clock, seconds) for _ in range(4)] == [new] * 4


def test_a_long_one_that_begins_does_not_stop_the_others(clock):
    turns = Turns()
    (talks,) = begun(turns, 1)
    run(turns, clock, {talks: 0.05})
    reads = Turn()
    turns.begin(reads)
    seen = [run(turns, clock, {talks: 0.05, reads: 0.8}) for _ in range(60)]
    gaps, gap = [], 0
    for turn in seen:
        gap = 0 if turn is talks else gap + 1
        gaps.append(gap)
    assert max(gaps) <= 3 and Counter(seen)[talks] > 20


def test_short_ones_without_end_do_not_stop_a_long_one(clock):
    """There is a new one as soon as the one before has ended: it takes all the time that it is given."""
    turns = Turns()
    (long,) = begun(turns, 1)
    short, since, longest = None, clock[0], 0.0
    for _ in range(2000):
        if short is None:
            short = Turn()
            turns.begin(short)
        if run(turns, clock, {long: 0.5, short: 0.3}) is long:
            longest, since = max(longest, clock[0] - 0.5 - since), clock[0]
        else:
            turns.end(short)
            short = None
    assert long.slices > 100 and longest <= 2 * HEAD_START_S + 0.3


def test_one_that_waits_for_another(clock):
    """It is not asked again before another one has run, and has no claim on the time that went by."""
    turns = Turns()
    first, second = begun(turns, 2)
    first.waits = True
    for _ in range(20):
        assert run(turns, clock, {second: 0.5}) is second
        assert not first.waits, "it may look whether it can go on"
        first.waits = True
    first.waits = False
    seen = Counter(run(turns, clock, {first: 0.5, second: 0.5}) for _ in range(20))
    assert abs(seen[first] - seen[second]) <= 2


def test_two_that_wait_for_a_third(clock):
    """What one of them finds out, that it cannot go on, is no news for the other: the third has the next slice."""
    turns = Turns()
    first, second, third = begun(turns, 3)
    clock[0] += 1
    with turns.slice(third):
        clock[0] += 2
    seen = []
    for _ in range(30):
        turn = turns.next()
        with turns.slice(turn):
            clock[0] += 0.5 if turn is third else 1e-5
            turn.waits = turn is not third
        seen.append(turn)
    assert seen.count(third) >= 10


def test_one_that_is_to_be_alone(clock):
    turns = Turns()
    first, second, third = begun(turns, 3)
    first.alone = third.alone = True
    seconds = dict.fromkeys((first, second, third), 0.5)
    assert [run(turns, clock, seconds) for _ in range(5)] == [second] * 5 and turns.one_is_alone
    turns.end(second)
    assert [run(turns, clock, seconds) for _ in range(5)] == [first] * 5, "one of them alone, to its end"


def test_memory_decides_where_it_can(clock):
    able = set()
    turns = Turns(lambda turn: turn in able)
    first, second = begun(turns, 2)
    able.add(second)
    assert [run(turns, clock, {second: 0.5}) for _ in range(9)] == [second] * 9
    second.waits = True
    assert run(turns, clock, {first: 0.5}) is first, "the other one waits for it, memory or not"


def test_own_time(clock):
    turns = Turns()
    (turn,) = begun(turns, 1)
    assert turns.clock() == clock[0], "nobody's"
    with turns.slice(turn):
        clock[0] += 2
        assert turns.clock() == 2
    clock[0] += 5
    with turns.slice(turn):
        assert turns.clock() == 2, "it stands still meanwhile"
        clock[0] += 1
        assert turns.clock() == 3 and turns.own_and_wait_s(turn) == (3, 5)
