"""Rounds of rows that an exception cuts off: rows that wait are taken into the recurrent states once, not twice, and
not in some layers only.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import vkprefill
from tests.model.test_failures import InterruptedAt, leave_turn
from tests.model.test_rows import START, TEXT, after, assert_goes_on, assert_same, decoded, run, run_round
from tests.reference.fixtures import model_path
from vkprefill.engine.cache import Cache, Snapshot
from vkprefill.engine.model import Model
from vkprefill.vulkan.program import Program


@contextmanager
def cut_off(at: int, after: bool) -> Iterator[None]:
    """KeyboardInterrupt before or after the at-th submission, as Ctrl-C comes while the host waits for the device."""
    submit, count = Program._submit, itertools.count(1)

    def cut(self: Program, sequence: object) -> None:
        this = next(count) == at
        if not this or after:
            submit(self, sequence)
        if this:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Program, "_submit", cut)
        yield


@pytest.fixture(scope="module", params=["mtp-b-q4km", "tiny-d-mixed"])
def several(request) -> Iterator[Model]:
    """Its programs submit each dispatch on its own, as without the barrier operation."""
    with vkprefill.load(model_path(request.param), max_context=2048, kv_type="f32") as model:
        model.device.one_by_one = True
        yield model


@pytest.mark.parametrize("ended", [False, True], ids=["before it", "after it"])
@pytest.mark.parametrize("waiting", [0, 1, 3])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_an_interrupt_while_the_device_runs(load_model, prompt, count, waiting, ended):
    """Whatever waits and however many rows run, the cache is as before the round, and never had a snapshot."""
    model = load_model("mtp-b-q4km", kv_type="f32", max_context=2048)
    assert model.runner.rows_program(count).num_submissions == 1 or not model.device.has_barrier
    plain, cache = (after(model, prompt[:START]) for _ in range(2))
    want = decoded(model, plain, TEXT[: waiting + 2])
    run_round(model, cache, 0, 3, waiting)  # from here on the live cache
    for _ in range(2):  # one after another
        with cut_off(1, ended):
            run(model, cache, TEXT[8 : 8 + count])
        assert not cache.broken or not model.device.has_barrier
        assert len(cache) == START + waiting
    assert_goes_on(model, cache, plain, waiting, want)


def test_an_interrupt_between_submissions(several, prompt):
    """After the last one all has run; before, nobody knows, and the cache says so where rows waited."""
    last = several.runner.rows_program(3).num_submissions
    assert last > 30
    plain = after(several, prompt[:START])
    want = decoded(several, plain, TEXT[:5])
    outcomes = {}
    for waiting in (0, 3):
        for at in (1, 2, last // 3, last // 2, last - 1, last):
            cache = after(several, prompt[:START])
            snapshot = cache.snapshot()
            if waiting:
                run_round(several, cache, 0, 3, waiting)
            with cut_off(at, after=True):
                run(several, cache, TEXT[8:11])
            outcomes[waiting, at] = cache.broken
            if cache.broken:
                for use in (lambda c=cache: several.decode(1, c), cache.snapshot):
                    with pytest.raises(vkprefill.RequestError, match="interrupted; reset it or restore a snapshot"):
                        use()
                cache.restore(snapshot)
            done = len(cache) - START
            assert done == (0 if outcomes[waiting, at] else waiting)
            for token_id in TEXT[done:3]:
                several.decode(token_id, cache)
            assert np.array_equal(run_round(several, cache, 3, 2, 2), want[3:])
            assert_same(cache, plain)
            cache.close()
    assert {waiting for (waiting, _), broken in outcomes.items() if broken} == {3}
    assert outcomes[3, 1] and not outcomes[3, last]
    plain.close()


def check_interrupts(model: Model, prompt: list[int], places: int) -> None:
    """Of a round after one whose rows wait, at so many lines of the package: the cache is as before the round, or after
    it, or, while it is being decided which, it says that it is broken and goes back to a snapshot.
    """
    plain = after(model, prompt[:START])
    want = decoded(model, plain, TEXT[:8])
    plain.close()

    def begin() -> tuple[Cache, Snapshot]:
        cache = after(model, prompt[:START])
        snapshot = cache.snapshot()
        run_round(model, cache, 0, 3, 3)
        return cache, snapshot

    cache, _ = begin()
    with InterruptedAt(0) as counting:
        run_round(model, cache, 3, 2, 2)
    cache.close()
    outcomes = set()
    for at in np.linspace(1, counting.lines, places, dtype=int).tolist():
        cache, snapshot = begin()
        with pytest.raises(KeyboardInterrupt), InterruptedAt(at):
            run_round(model, cache, 3, 2, 2)
        leave_turn(model)
        outcomes.add("broken" if cache.broken else len(cache) - START)
        if cache.broken:
            cache.restore(snapshot)
        done = len(cache) - START
        assert np.array_equal(run_round(model, cache, done, 2, 3), want[done : done + 3]), f"line {at}"
        cache.close()
    assert 3 in outcomes and outcomes <= {3, 5, "broken"}


def test_an_interrupt_anywhere_in_a_round(tiny, prompt):
    check_interrupts(tiny, prompt, 40)


@pytest.mark.exhaustive
def test_interrupts_at_all_lines_of_a_round(tiny, prompt):
    check_interrupts(tiny, prompt, 400)
