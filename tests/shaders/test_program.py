"""Device and Program: hazards, submissions, errors, memory, transfers."""

import dataclasses

import numpy as np
import pytest

import vkprefill.vulkan.device as device_module
from tests.shaders.run_kernel import used_and_closed, using_profile
from vkprefill.errors import DeviceError, OutOfMemoryError


@pytest.fixture
def buffers(device):
    made = [device.host_array(name, np.full(64, i, np.uint32)) for i, name in enumerate("abc")]
    yield made
    for buffer in made:
        buffer.free()


@pytest.fixture
def barriers(device, monkeypatch) -> list:
    """Every barrier recorded from now on."""
    if not device.has_barrier:
        pytest.skip("the barrier operation is not built (tools/build_native.py)")
    operation, recorded = device._barrier, []

    def record():
        recorded.append(operation())
        return recorded[-1]

    monkeypatch.setattr(device, "_barrier", record)
    return recorded


def read_after_write(p, a, b, c):
    p.fill(a, 7)
    p.copy(a, b, 0, 0, 64)


def write_after_read(p, a, b, c):
    p.copy(a, b, 0, 0, 64)
    p.fill(a, 7)


def write_after_write(p, a, b, c):
    p.fill(a, 6)
    p.fill(a, 7)


def write_of_another_part(p, a, b, c):
    """Parts of a buffer may overlap: they count as the buffer."""
    p.fill(a.part("front", 0, (32,)), 6)
    p.copy(a.part("all", 0, (64,)), b, 0, 0, 64)


def two_reads(p, a, b, c):
    p.copy(a, b, 0, 0, 64)
    p.copy(a, c, 0, 0, 64)


def two_buffers(p, a, b, c):
    p.fill(a, 6)
    p.fill(b, 7)


DEPENDENT = [read_after_write, write_after_read, write_after_write, write_of_another_part]
EXPECTED = {
    read_after_write: (7, 7, 2),
    write_after_read: (7, 0, 2),
    write_after_write: (7, 1, 2),
    two_reads: (0, 0, 0),
    two_buffers: (6, 7, 2),
}


def run_and_compare(program, buffers, case) -> None:
    program.run()
    if case in EXPECTED:
        assert [set(b.read().tolist()) for b in buffers] == [{value} for value in EXPECTED[case]]


@pytest.mark.parametrize("case", DEPENDENT)
def test_dependent_dispatches_have_a_barrier_between(device, buffers, barriers, case):
    program = device.program("test")
    case(program, *buffers)
    assert (len(barriers), program.num_submissions) == (1, 1)
    run_and_compare(program, buffers, case)


@pytest.mark.parametrize("case", [two_reads, two_buffers])
def test_independent_dispatches_have_none(device, buffers, barriers, case):
    program = device.program("test")
    case(program, *buffers)
    assert (len(barriers), program.num_submissions) == (0, 1)
    run_and_compare(program, buffers, case)


@pytest.mark.parametrize("case", [*DEPENDENT, two_reads, two_buffers])
def test_without_the_barrier_operation_a_dependency_ends_the_submission(device, buffers, monkeypatch, case):
    monkeypatch.setattr(device, "_barrier", None)
    program = device.program("test")
    case(program, *buffers)
    assert program.num_submissions == (2 if case in DEPENDENT else 1)
    run_and_compare(program, buffers, case)


def test_a_barrier_covers_what_came_before_it(device, buffers, barriers):
    """Level 1 writes a and b; level 2 reads a, then b: one barrier is enough for both."""
    a, b, c = buffers
    program = device.program("test")
    program.fill(a, 1)
    program.fill(b, 2)
    program.copy(a, c, 0, 0, 32)
    assert len(barriers) == 1
    program.copy(b, device.host_array("d", np.zeros(64, np.uint32)), 0, 0, 32)
    assert len(barriers) == 1
    program.fill(b, 3)  # read in this level
    assert len(barriers) == 2


def test_writes_are_made_visible_to_the_host_once(device, buffers, barriers):
    program = device.program("test")
    program.fill(buffers[0], 1)
    program.run()
    assert len(barriers) == 1
    program.run()
    assert len(barriers) == 1


@pytest.mark.parametrize("with_barrier", [True, False])
def test_thousand_dependent_dispatches_are_exact(device, monkeypatch, with_barrier):
    """Each copy moves everything by one place, from one buffer to the other: a place read too early stays behind."""
    if not with_barrier:
        monkeypatch.setattr(device, "_barrier", None)
    elif not device.has_barrier:
        pytest.skip("the barrier operation is not built (tools/build_native.py)")
    count, steps = 40_000, 1000
    pair = [np.arange(count, dtype=np.uint32), np.arange(count, dtype=np.uint32)[::-1].copy()]
    buffers = [device.host_array(f"buffer {i}", values) for i, values in enumerate(pair)]
    program = device.program("test")
    for i in range(steps):
        program.copy(buffers[i % 2], buffers[1 - i % 2], 0, 1, count - 1)
        pair[1 - i % 2][1:] = pair[i % 2][:-1]
    assert program.num_submissions == (1 if with_barrier else steps)
    program.run()
    for buffer, expected in zip(buffers, pair, strict=True):
        np.testing.assert_array_equal(buffer.read(), expected)
        buffer.free()


def dispatch_fill(program, target, work: float) -> None:
    program.dispatch(
        "fill", [target], (1, 1, 1), constants={"LOCAL_SIZE": 64}, push={"value": 1, "count": 64}, work=work
    )


@pytest.mark.parametrize(
    ("works", "submissions"),
    [
        ([60, 40], 1),
        ([60, 41], 2),
        ([60, 60, 30], 2),
        ([500, 1], 2),
        ([1, 500, 1], 3),
        ([500], 1),
        ([0, 0, 0], 1),
        ([0, 500], 1),
    ],
)
def test_submissions_end_at_the_bound_on_work(device, works, submissions):
    targets = [device.host_array(f"target {i}", np.zeros(64, np.uint32)) for i in range(len(works))]
    with using_profile(device, dataclasses.replace(device.profile, submission_flop=100.0)):
        program = device.program("test")
        for target, work in zip(targets, works, strict=True):
            dispatch_fill(program, target, work)
    assert program.num_submissions == submissions
    calls = []
    program.run(lambda: calls.append(1))
    assert len(calls) == submissions
    assert all((target.read() == 1).all() for target in targets)


def test_results_do_not_depend_on_where_submissions_end(device):
    target = device.host_array("target", np.zeros(64, np.uint32))
    with using_profile(device, dataclasses.replace(device.profile, submission_flop=1.0)):
        program = device.program("test")
        for value in range(20):
            program.dispatch(
                "fill",
                [target],
                (1, 1, 1),
                constants={"LOCAL_SIZE": 64},
                push={"value": value, "count": 64 - value},
                work=1.0,
            )
    assert program.num_submissions == 20
    program.run()
    np.testing.assert_array_equal(target.read(), np.minimum(19, 63 - np.arange(64)))


FILL = {"constants": {"LOCAL_SIZE": 64}, "push": {"value": 1, "count": 64}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"buffers": 2}, "2 buffers given, 1 bindings"),
        ({"buffers": 0}, "0 buffers given, 1 bindings"),
        ({"constants": {}}, "constants"),
        ({"constants": {"LOCAL_SIZE": 64, "TM": 1}}, "constants"),
        ({"push": {"value": 1}}, "push words"),
        ({"push": None}, "push words"),
        ({"grid": (0, 1, 1)}, "grid"),
        ({"grid": (1, 65536, 1)}, "grid"),
    ],
)
def test_wrong_dispatches_are_refused(device, buffers, change, message):
    program = device.program("test")
    arguments = FILL | {key: change[key] for key in change if key in FILL}
    with pytest.raises(TypeError, match=f"test.fill: .*{message}"):
        program.dispatch("fill", buffers[: change.get("buffers", 1)], change.get("grid", (1, 1, 1)), **arguments)
    assert program.num_submissions == 0


def test_unknown_shader_and_freed_buffer_are_refused(device):
    program = device.program("test")
    with pytest.raises(DeviceError, match="no_such_shader"):
        program.dispatch("no_such_shader", [], (1, 1, 1))
    gone = device.host_array("gone", np.zeros(4, np.uint32))
    gone.free()
    with pytest.raises(DeviceError, match="^test.fill gone: gone was freed"):
        program.fill(gone)
    assert program.num_submissions == 0


class NoManager:
    """In place of kp's manager where it must not be called."""

    def __getattr__(self, name):
        raise AssertionError(f"kp called: {name}")


@pytest.mark.parametrize("over", [0, 1 << 40])
def test_too_large_a_buffer_is_refused_before_kp_is_called(device, monkeypatch, over):
    monkeypatch.setattr(device, "_manager", NoManager())
    monkeypatch.setattr(device, "available_bytes", lambda *_: 1 << 62)
    before = device.allocated.total()
    with pytest.raises(OutOfMemoryError, match="huge: .* in one buffer"):
        device.buffer("huge", (min(device.info.max_buffer_bytes, 2**32 - 4) // 4 + 1 + over,), np.uint32)
    assert device.allocated.total() == before


def test_more_than_is_available_is_refused_before_kp_is_called(device, monkeypatch):
    monkeypatch.setattr(device, "_manager", NoManager())
    monkeypatch.setattr(device, "available_bytes", lambda *_: 1000)
    with pytest.raises(OutOfMemoryError, match="some: needs"):
        device.buffer("some", (251,))
    with pytest.raises(OutOfMemoryError, match="a model: needs"):
        device.require(1001, "a model")
    device.require(1000, "a model")


@pytest.mark.parametrize(
    ("shape", "dtype"), [((4,), np.float64), ((4,), np.uint8), ((0,), np.float32), ((3, 0), np.uint32)]
)
def test_buffers_hold_items_of_four_bytes(device, shape, dtype):
    with pytest.raises(TypeError, match="4-byte items"):
        device.buffer("odd", shape, dtype)


def test_memory_is_accounted_by_kind(device):
    before = device.allocated["testing"]
    buffer = device.buffer("some", (10, 25), kind="testing")
    assert device.allocated["testing"] - before == 1000 == buffer.num_bytes
    buffer.free()
    buffer.free()
    assert device.allocated["testing"] == before


@pytest.fixture
def small_slices(device, monkeypatch):
    """Slices of 256 items in a host slice of the usual size."""
    assert device.staging.num_bytes >= 1024
    monkeypatch.setattr(device_module, "UPLOAD_SLICE_BYTES", 1024)


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("count", [1, 255, 256, 257, 511, 512, 513, 5000])
def test_transfers_cross_the_borders_of_slices(device, count):
    values = np.random.default_rng(count).integers(0, 2**32, count, np.uint32)
    buffer = device.buffer("target", (count,), np.uint32)
    cuts = [min(3, count), min(300, count)]
    device.upload(buffer, np.split(values, cuts))
    np.testing.assert_array_equal(buffer.read(), values)
    buffer.free()


@pytest.mark.usefixtures("small_slices")
@pytest.mark.parametrize("memory", ["device", "host"])
def test_transfers_of_a_part_leave_the_rest(device, memory):
    whole = device.buffer("whole", (1500,), np.uint32, memory=memory)
    device.upload(whole, [np.arange(1500, dtype=np.uint32)])
    part = whole.part("part", 130, (100, 10)).part("part of it", 10, (90, 10))
    np.testing.assert_array_equal(part.read(), np.arange(140, 1040, dtype=np.uint32).reshape(90, 10))
    device.upload(part, [np.full((90, 10), 7, np.uint32)])
    expected = np.arange(1500)
    expected[140:1040] = 7
    np.testing.assert_array_equal(whole.read(), expected)
    whole.free()


def test_transfer_of_real_slices(device):
    """One and a half of the slices that weights go through, as floats."""
    count = device_module.UPLOAD_SLICE_BYTES // 4 * 3 // 2 + 1
    values = np.arange(count, dtype=np.float32)
    buffer = device.buffer("target", (count,))
    device.upload(buffer, [values[:7], values[7:]])
    got = buffer.read()
    buffer.free()
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, values)


@pytest.mark.parametrize("given", [9, 11])
def test_upload_of_another_length_is_refused(device, given):
    """And nothing is written past the end, where other parts of the buffer are."""
    buffer = device.buffer("whole", (12,), np.uint32)
    device.upload(buffer, [np.full(12, 7, np.uint32)])
    with pytest.raises(ValueError, match="target: .* bytes uploaded"):
        device.upload(buffer.part("target", 0, (10,)), [np.zeros(given, np.float32)])
    assert buffer.read()[10:].tolist() == [7, 7]
    buffer.free()


def test_device_memory_has_no_view(device):
    buffer = device.buffer("hidden", (4,))
    with pytest.raises(TypeError, match="hidden: device memory"):
        buffer.view()
    buffer.free()


class LostSequence:
    def __init__(self) -> None:
        self.evaluated = 0

    def eval(self) -> None:
        self.evaluated += 1
        raise RuntimeError("vkQueueSubmit: ErrorDeviceLost")


def test_lost_device_is_an_error_and_stays_lost(device, buffers, monkeypatch):
    monkeypatch.setattr(device, "lost", False)
    program, other = device.program("first"), device.program("second")
    lost = LostSequence()
    program._sequences = [lost]
    other.fill(buffers[0], 9)
    with pytest.raises(DeviceError, match="first: .*lost or failed: .*ErrorDeviceLost"):
        program.run()
    assert device.lost
    for again in (program, other):
        with pytest.raises(DeviceError, match="lost earlier; load the model again"):
            again.run()
    assert lost.evaluated == 1
    assert not (buffers[0].read() == 9).any()


def test_closed_device_is_an_error():
    own, buffer, program = used_and_closed()
    own.close()
    for use in (lambda: own.buffer("more", (4,)), buffer.view, program.run, lambda: own.program("new").fill(buffer)):
        with pytest.raises(DeviceError, match="closed"):
            use()
    buffer.free()


def test_barrier_operation_can_be_turned_off(monkeypatch):
    monkeypatch.setenv("VKPREFILL_BARRIER", "0")
    assert device_module._import_barrier() is None
