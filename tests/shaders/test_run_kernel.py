"""The guards of run_kernel.py do what they are for."""

import numpy as np
import pytest

from tests.emulated import is_emulated
from tests.shaders.run_kernel import FOREIGN, KernelRun, check

WORDS = np.arange(100, dtype=np.uint32)


def test_write_past_the_end_is_noticed(device, dispatches):
    run = KernelRun(device, 1)
    run.program.copy(run.input("x", WORDS, by_row=False), run.output("y", 50, by_row=False), 0, 0, 51)
    if is_emulated(device):
        run.finish()
        assert [d["outside"] for d in dispatches.take()] == [1]
        return
    with pytest.raises(AssertionError, match=r"y: written past its end, at words \[0\]"):
        run.finish()


def test_write_to_a_spare_row_is_noticed(device):
    run = KernelRun(device, 2, 3)
    run.program.copy(run.input("x", WORDS, by_row=False), run.output("y", 10), 0, 0, 21)
    with pytest.raises(AssertionError, match=r"y: output changed where it must not, first at word 20 of \(3, 10\)"):
        run.finish()


def test_changed_input_is_noticed(device):
    run = KernelRun(device, 1)
    run.program.fill(run.input("x", WORDS, by_row=False), 5)
    with pytest.raises(AssertionError, match="x: input changed"):
        run.finish()


def test_unwritten_element_is_noticed(device):
    run = KernelRun(device, 1)
    run.program.copy(
        run.input("x", np.ones(100, np.float32), by_row=False), run.output("y", 50, by_row=False), 0, 0, 49
    )
    with pytest.raises(AssertionError, match=r"some case: 1 of 50 not finite, first at \(49,\): never written"):
        check("some case", run.finish()["y"], np.ones(50), 1e-5)


def test_message_of_an_error():
    got, expected = np.ones((2, 3), np.float32), np.ones((2, 3))
    expected[1, 2] = 1.5
    with pytest.raises(
        AssertionError,
        match=r"some case: error 4.55e-01 of the RMS 1.1, worst at \(1, 2\): 1, expected 1.5; limit 1e-05",
    ):
        check("some case", got, expected, 1e-5)
    got[0, 1] = np.inf
    with pytest.raises(AssertionError, match=r"first at \(0, 1\): inf"):
        check("some case", got, expected, 1.0)


def test_weights_start_inside_their_buffer(device):
    run = KernelRun(device, 1)
    weight = run.weight("w", np.ones(8, np.float32))
    assert weight.offset > 0
    whole = weight.tensor.data().view(np.uint32)
    assert (whole[: weight.offset] == FOREIGN).all() and (whole[weight.offset + 8 :] == FOREIGN).all()
    run.finish()
