"""Slices of work beside other work: their share of the time by a clock that the test turns."""

import pytest

from vkprefill.generation.slices import Slices


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Steps:
    """Work of so many steps, each of so many seconds."""

    def __init__(self, clock: Clock, seconds: float, count: int) -> None:
        self.taken, self.closed = 0, False
        self._clock, self._seconds, self._count = clock, seconds, count

    def __iter__(self):
        try:
            for _ in range(self._count):
                self._clock.now += self._seconds
                self.taken += 1
                yield
        finally:
            self.closed = True


def test_half_of_the_time():
    """Steps of 1 s beside rounds of 0.25 s: one for each four, the first when one is due at all."""
    clock = Clock()
    steps = Steps(clock, 1.0, 50)
    slices, taken = Slices(iter(steps), 0.5, clock), []
    for _ in range(12):
        clock.now += 0.25
        slices.take_share()
        taken.append(steps.taken)
    assert taken == [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3] and not slices.done


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.8, 0.9])
@pytest.mark.parametrize("seconds", [0.0625, 0.375, 3.0])
def test_shares_are_kept_over_time(share, seconds):
    clock = Clock()
    steps = Steps(clock, seconds, 100_000)
    slices = Slices(iter(steps), share, clock)
    other = 0.0
    for number in range(2000):
        wait = 0.25 * (number % 3)
        clock.now += wait
        other += wait
        slices.take_share()
    spent = steps.taken * seconds
    assert abs(spent - (spent + other) * share) <= seconds, "never more than a step off"


def test_all_of_the_time_and_none_of_it():
    clock = Clock()
    eager, idle = Steps(clock, 1.0, 9), Steps(clock, 1.0, 9)
    whole, none = Slices(iter(eager), 1, clock), Slices(iter(idle), 0, clock)
    for _ in range(3):
        whole.take_share()
        clock.now += 5
        none.take_share()
    assert whole.done and eager.taken == 9 and eager.closed
    assert idle.taken == 0 and not none.done
    assert none.step() and idle.taken == 1, "where it is asked for"
    while none.step():
        pass
    assert none.done and idle.taken == 9 and not none.step()


def test_what_came_before_does_not_count():
    clock = Clock()
    steps = Steps(clock, 1.0, 9)
    slices = Slices(iter(steps), 0.5, clock)
    clock.now += 1000
    slices.start()
    slices.take_share()
    assert steps.taken == 0
    clock.now += 0.5
    slices.take_share()
    assert steps.taken == 1


def test_closing_and_failing():
    clock = Clock()
    steps = Steps(clock, 1.0, 9)
    slices = Slices(iter(steps), 0.5, clock)
    assert slices.step()
    slices.close()
    assert steps.closed and slices.done and not slices.step() and steps.taken == 1

    def failing():
        yield
        raise ZeroDivisionError

    slices = Slices(failing(), 1, clock)
    assert slices.step()
    with pytest.raises(ZeroDivisionError):
        slices.step()
    assert slices.done and not slices.step(), "what has failed does not go on"
