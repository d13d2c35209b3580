"""Times of dispatches on the device: in order, inside the run, for every submission, and at no other's cost."""

import dataclasses
import itertools

import numpy as np
import pytest

from tests.shaders.run_kernel import using_profile
from vkprefill.vulkan import timing
from vkprefill.vulkan.timing import Marks, Recording


@pytest.fixture
def timed(device):
    if not device.abilities.timestamps:
        pytest.skip(f"kernels cannot be timed on the device: {device.abilities}")
    return device


def record(device, dispatches: int):
    """A program of dependent fills of 1 to `dispatches` words, the last value in front."""
    target = device.host_array("target", np.zeros(64, np.uint32))
    program = device.program("test")
    for i in range(dispatches):
        program.dispatch(
            "fill",
            [target],
            (1 + i % 3, 1, 1),
            constants={"LOCAL_SIZE": 64},
            push={"value": i + 1, "count": 64},
            work=1.0,
            label=f"step {i}",
        )
    return target, program


@pytest.mark.parametrize("pool_marks", [2, 7, 512])
@pytest.mark.parametrize("submission_flop", [1e9, 3.0])
def test_times_rise_and_fit_into_the_run(timed, monkeypatch, pool_marks, submission_flop):
    monkeypatch.setattr(timing, "POOL_MARKS", pool_marks)
    with using_profile(timed, dataclasses.replace(timed.profile, submission_flop=submission_flop)):
        with timed.record_times() as recording:
            target, program = record(timed, 20)
    for _ in range(2):
        program.run()
        assert (target.read() == 20).all()
    assert len(recording.runs) == 2
    for run in recording.runs:
        assert run.program == "test"
        assert [span.label for span in run.spans] == [f"test.step {i}" for i in range(20)]
        assert [span.grid for span in run.spans] == [(1 + i % 3, 1, 1) for i in range(20)]
        assert {span.shader for span in run.spans} == {"fill"}
        assert len({span.submission for span in run.spans}) == program.num_submissions
        assert all(span.begin_ns <= span.end_ns for span in run.spans)
        assert all(one.end_ns <= next_.begin_ns for one, next_ in itertools.pairwise(run.spans))
        assert 0 < sum(span.seconds for span in run.spans) <= run.seconds
    first, second = recording.runs
    assert first.spans[-1].end_ns <= second.spans[0].begin_ns


def test_only_programs_made_meanwhile_are_timed(timed):
    _, before = record(timed, 2)
    with timed.record_times() as recording:
        _, inside = record(timed, 3)
    _, after = record(timed, 4)
    for program in (before, inside, after, inside):
        program.run()
    assert [len(run.spans) for run in recording.runs] == [3, 3]


def test_a_run_keeps_its_dispatches_when_the_program_grows(timed):
    with timed.record_times() as recording:
        target, program = record(timed, 2)
        program.run()
        program.fill(target, 9)
        program.run()
    assert [len(run.spans) for run in recording.runs] == [2, 3]
    assert (target.read() == 9).all()


def test_what_is_run_is_the_same_with_and_without(timed):
    _, plain = record(timed, 20)
    with timed.record_times():
        _, marked = record(timed, 20)
    assert marked.num_submissions == plain.num_submissions and marked.labels == plain.labels


def test_an_error_in_the_run_leaves_no_times(timed):
    with timed.record_times() as recording:
        _, program = record(timed, 2)

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        program.run(stop)
    assert recording.runs == []
    program.run()
    assert len(recording.runs) == 1


class Clock:
    """A device's clock of 8 bits whose ticks last 10 ns."""

    tick_bits, tick_ns = 8, 10.0


def test_ticks_become_nanoseconds_also_where_the_counter_begins_anew():
    recording = Recording(None, Clock())
    assert recording.nanoseconds([250, 255]) == (0.0, 50.0)
    assert recording.nanoseconds([255, 0, 3]) == (50.0, 60.0, 90.0)


class FakeNative:
    """In the companion's place: pools whose marks are read as 0, 1, 2, ... in the order they were recorded."""

    def __init__(self) -> None:
        self.recorded = 0

    def Timestamps(self, context, count):  # noqa: N802
        start = self.recorded

        class Pool:
            def read(self, marks):
                assert marks <= count
                return range(start, start + marks)

        return Pool()

    def Mark(self, pool, place):  # noqa: N802
        self.recorded += 1
        return self.recorded


class Sequence:
    def record(self, operation):
        pass


def test_time_between_submissions_is_nobodys(monkeypatch):
    """Marks 0 | 1 2 | 3 of the next submission's beginning | 4, over pools of three."""
    monkeypatch.setattr(timing, "POOL_MARKS", 3)
    recording = Recording(FakeNative(), Clock())
    marks, sequence = Marks(recording), Sequence()
    marks.begin_submission(sequence)
    for label in "ab":
        marks.end_dispatch(sequence, label, "shader", (1, 2, 3))
    marks.begin_submission(sequence)
    marks.end_dispatch(sequence, "c", "shader", (4, 5, 6))
    with marks.run("program"):
        pass
    (run,) = recording.runs
    assert [(s.label, s.submission, s.begin_ns, s.end_ns) for s in run.spans] == [
        ("a", 0, 0.0, 10.0),
        ("b", 0, 10.0, 20.0),
        ("c", 1, 30.0, 40.0),
    ]
    assert run.spans[2].grid == (4, 5, 6)
