"""A model belongs to one thread at a time: a second one is refused in one line and changes nothing."""

import threading

import numpy as np
import pytest

import vkprefill
from tests.model.test_failures import InterruptedAt
from vkprefill.engine.one_thread import OneThread
from vkprefill.engine.step_input import Best


def refused(call) -> str:
    """The error of a call from another thread."""
    found: list[str] = []

    def run() -> None:
        try:
            call()
        except vkprefill.RequestError as error:
            found.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0] if found else "not refused"


def test_a_second_thread_is_refused(tiny, prompt):
    cache, other = tiny.new_cache(), tiny.new_cache()
    tiny.extend(prompt[:5], other)
    snapshot = other.snapshot()
    messages = []

    def from_another_thread(*_: int) -> None:
        for call in (
            lambda: tiny.prefill([1, 2], cache=other),
            lambda: tiny.extend([1, 2], other),
            lambda: tiny.decode(1, other),
            lambda: tiny.logits([1]),
            lambda: tiny.prefill_candidates([1], other, Best(1)),
            lambda: tiny.decode_candidates(1, other, Best(1)),
            lambda: tiny.prefill([1, 2], cache=other, capture=vkprefill.AttentionCapture()),
            other.snapshot,
            lambda: other.restore(snapshot),
        ):
            messages.append(refused(call))

    logits = tiny.prefill(prompt[:70], cache=cache, progress=from_another_thread)
    assert messages and set(messages) == {
        f"model {tiny.config.name}: in use by another thread; "
        "call it from one thread at a time, or load it once for each"
    }
    assert np.array_equal(logits, tiny.prefill(prompt[:70])) and len(other) == 5
    cache.close()
    other.close()


def test_one_thread_after_the_other(tiny, prompt):
    right = tiny.prefill(prompt[:9])
    found = []
    thread = threading.Thread(target=lambda: found.append(tiny.prefill(prompt[:9])))
    thread.start()
    thread.join()
    assert np.array_equal(found[0], right)


def test_given_back_after_an_error():
    turn = OneThread("x")
    with pytest.raises(KeyError):
        with turn, turn:
            raise KeyError
    assert refused(turn.__enter__) == "not refused"


def test_given_back_after_an_interrupt_at_any_line():
    def nested(turn: OneThread) -> None:
        with turn, turn:
            pass

    turn = OneThread("x")
    with InterruptedAt(0) as counting:
        nested(turn)
    assert counting.lines
    for at in range(1, counting.lines + 1):
        turn = OneThread("x")
        with pytest.raises(KeyboardInterrupt), InterruptedAt(at):
            nested(turn)
        assert refused(turn.__enter__) == "not refused", f"line {at}"
