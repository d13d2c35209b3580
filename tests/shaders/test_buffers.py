"""Who owns memory: what is dropped is given back, whatever interrupts it; nothing meets what another left behind."""

import gc
import sys
from collections import Counter

import numpy as np
import pytest

from tests.shaders.run_kernel import used_and_closed
from vkprefill.errors import DeviceError
from vkprefill.vulkan.device import Device


@pytest.fixture(autouse=True)
def nothing_is_left(device):
    """Accounting and pipelines are where they were before the test, without a run of the collector."""
    gc.collect()  # what earlier tests left in cycles would go in the middle of this one
    device.staging  # noqa: B018 - made once, at the first use
    before, bound = +device.allocated, len(device.pipelines.bound)
    yield
    assert +device.allocated == before
    assert len(device.pipelines.bound) == bound


class Interrupted:
    """Calls one method of an object and raises KeyboardInterrupt, once; all else is the object's own."""

    def __init__(self, of: object, method: str) -> None:
        self._of, self._method = of, method

    def __getattr__(self, name: str):
        found = getattr(self._of, name)
        if name != self._method:
            return found
        self._method = None

        def call(*arguments):
            found(*arguments)
            raise KeyboardInterrupt

        return call


def test_what_is_dropped_is_given_back(device):
    before, bound = +device.allocated, len(device.pipelines.bound)
    buffer = device.buffer("dropped", (1000,), kind="testing")
    device.upload(buffer, [np.ones(1000, np.float32)])
    assert device.allocated == before + Counter(testing=4000) and len(device.pipelines.bound) > bound
    del buffer
    assert +device.allocated == before and len(device.pipelines.bound) == bound


def test_a_buffer_never_meets_the_pipelines_of_another(device):
    """Each is dropped or freed before the next one is made, so that addresses in memory are used again."""
    serials = set()
    for value in range(60):
        buffer = device.buffer("one of many", (64,), np.uint32)
        device.upload(buffer, [np.full(64, value, np.uint32)])
        assert set(buffer.read().tolist()) == {value}
        serials.add(buffer.serial)
        if value % 2:
            buffer.free()
    assert len(serials) == 60


def test_parts_share_the_memory_and_its_owner(device):
    before = +device.allocated
    part = device.host_array("whole", np.arange(64, dtype=np.uint32), kind="testing").part("part", 8, (4,))
    assert part.read().tolist() == [8, 9, 10, 11] and device.allocated["testing"] == 256
    other = part.part("part of it", 1, (2,))
    part.free()
    assert +device.allocated == before
    with pytest.raises(DeviceError, match="^part of it: was freed"):
        other.read()


def test_a_program_keeps_what_it_binds(device):
    source, target = (device.host_array(name, np.full(64, 5, np.uint32), kind="testing") for name in ("from", "to"))
    program = device.program("test")
    program.copy(source.part("half", 0, (32,)), target, 0, 0, 32)
    target.view()[:] = 0
    del source
    assert device.allocated["testing"] == 512
    program.run()
    assert set(target.read()[:32].tolist()) == {5}


@pytest.mark.parametrize("with_barrier", [True, False])
def test_a_program_does_not_run_once_a_buffer_of_it_is_freed(device, monkeypatch, with_barrier):
    if not with_barrier:
        monkeypatch.setattr(device, "_barrier", None)
    zeros = np.zeros(64, np.uint32)
    kept, gone = (device.host_array(name, zeros) for name in ("kept", "gone"))
    program = device.program("test")
    program.fill(kept, 9)
    program.fill(gone, 9)
    gone.free()
    gone.free()
    for use in (program.run, lambda: program.fill(gone), gone.view, gone.read, lambda: device.upload(gone, [zeros])):
        with pytest.raises(DeviceError, match=r"gone.* was freed|^gone: was freed") as caught:
            use()
        assert "\n" not in str(caught.value)
    assert not kept.read().any()
    kept.free()  # the error's traceback holds it


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_failing_while_memory_is_taken(device, monkeypatch, error):
    def fail(*_):
        raise error

    before = +device.allocated
    if error is KeyboardInterrupt:  # after kp has taken the memory
        monkeypatch.setattr(device, "_manager", Interrupted(device._manager, "tensor_t"))
    else:
        monkeypatch.setattr(np, "empty", fail)
    with pytest.raises(error):
        device.buffer("some", (1000,))
    monkeypatch.undo()
    assert +device.allocated == before


@pytest.mark.parametrize("where", ["pipelines", "tensor", "ledger"])
@pytest.mark.parametrize("how", ["freed", "dropped"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_while_memory_is_given_back(device, monkeypatch, where, how):
    """It is given back all the same, by the next look at the accounts, and cannot be used meanwhile."""
    buffer = device.host_array("some", np.zeros(64, np.uint32), kind="testing")
    device.program("test").fill(buffer)
    with monkeypatch.context() as patch:
        if where == "pipelines":
            patch.setattr(device.pipelines, "bound", Interrupted(device.pipelines.bound, "copy"))
        elif where == "tensor":
            buffer.owner.tensor = Interrupted(buffer.owner.tensor, "destroy")
        else:
            patch.setattr(device, "_ledger", Interrupted(device._ledger, "close"))
        if how == "dropped":
            del buffer
        else:
            with pytest.raises(KeyboardInterrupt):
                buffer.free()
            with pytest.raises(DeviceError, match="some: was freed"):
                buffer.view()
    assert device.allocated["testing"] == 0


def test_the_collector_may_drop_buffers_anywhere(device):
    """Buffers in circles are dropped by the collector, which is made to run at every allocation of Python's."""
    thresholds = gc.get_threshold()
    gc.collect()
    try:
        gc.set_threshold(1)
        for value in range(100):
            buffer = device.host_array("in a circle", np.zeros(64, np.uint32), kind="testing")
            program = device.program("test")
            program.fill(buffer, value)
            program.run()
            assert set(buffer.read().tolist()) == {value}
            circle = [buffer, program]
            circle.append(circle)
            del circle, buffer, program
            assert device.allocated["testing"] < 100 * 256
    finally:
        gc.set_threshold(*thresholds)
        gc.collect()
    assert device.allocated["testing"] == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, DeviceError])
def test_what_an_error_leaves_goes_before_its_traceback(device, error):
    before = device.host_array("before", np.zeros(4, np.uint32), kind="testing")
    with pytest.raises(error) as caught, device.freed_on_error():
        inside = [device.buffer(name, (64,), kind="testing") for name in "ab"]
        raise error("in between")
    assert caught.value.__traceback__ and all(buffer.owner.freed for buffer in inside)
    assert device.allocated["testing"] == before.num_bytes and not before.view().any()
    before.free()


def test_what_outlives_its_device_is_no_harm():
    own, buffer, program = used_and_closed()
    assert own.allocated.total() == 0 == len(own.pipelines) == len(own.pipelines.bound)
    with pytest.raises(DeviceError, match="closed"):
        program.run()
    buffer.free()
    del buffer, program


def test_an_interrupted_close_is_finished_by_the_next(monkeypatch):
    own = Device.open()
    buffer = own.host_array("some", np.zeros(4, np.uint32))
    with monkeypatch.context() as patch:
        patch.setattr(own, "_manager", Interrupted(own._manager, "destroy"))
        with pytest.raises(KeyboardInterrupt):
            own.close()
    with pytest.raises(DeviceError, match="closed"):
        buffer.view()
    own.close()
    assert own.allocated.total() == 0


def test_a_device_that_is_dropped_goes_with_its_buffers():
    own = Device.open()
    buffer = own.host_array("some", np.zeros(4, np.uint32))
    assert sys.getrefcount(buffer.owner) < 5, "no table of the device's holds an owner"
    del own
    buffer.view()[:] = 1
    assert buffer.read().tolist() == [1, 1, 1, 1]
