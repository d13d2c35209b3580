"""Memory by heap, on GPUs made up by hand: what counts as memory, what fits, and what is said when it does not."""

import json
from types import SimpleNamespace

import pytest
from gguf import GGMLQuantizationType

from tools.make_model import make_config
from vkprefill.cli import devices as devices_command
from vkprefill.engine.memory import LoadOptions, fit, memory_bill
from vkprefill.errors import OutOfMemoryError, RequestError
from vkprefill.vulkan import device as device_module
from vkprefill.vulkan.allocation import Allocation
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.probe import DeviceInfo, Heap, _heap_of
from vkprefill.vulkan.profiles import AMD, INTEL, NVIDIA

GIB = 1 << 30

# (flags, heap) of memory types: 1 device-local, 2 visible to the CPU, 4 coherent, 8 cached
NVIDIA_TYPES = [(0, 1), (0, 1), (1, 0), (6, 1), (14, 1), (7, 2)]
AMD_TYPES = [(1, 0), (1, 0), (6, 1), (7, 0), (7, 0), (14, 1)]
INTEL_TYPES = [(15, 0), (7, 0)]


def gpu(kind: str, vendor: int, types: list[tuple[int, int]], *heaps: Heap) -> DeviceInfo:
    return DeviceInfo(
        *(0, f"{kind} GPU", kind, vendor, "", "1.3.0", heaps, _heap_of(types, 1), _heap_of(types, 6)),
        *(32, 32, 4 * GIB - 4, 1024, 64 << 10, ()),
    )


CARD = gpu("discrete", NVIDIA, NVIDIA_TYPES, Heap(8 * GIB, True), Heap(24 * GIB, False), Heap(256 << 20, True))
APU = gpu("integrated", AMD, AMD_TYPES, Heap(10 * GIB, True), Heap(5 * GIB, False))
ONE_HEAP = gpu("integrated", INTEL, INTEL_TYPES, Heap(12 * GIB, True))


class FakeDevice(Device):
    """Accounts as a real one does; kp is never called."""

    def _connect(self) -> None:
        self.closed, self.owners = True, []

    def take(self, num_bytes: int, memory: str) -> None:
        self.owners.append(Allocation(self))
        self._ledger.open(self.owners[-1], "testing", memory, num_bytes)


def model(shape: str) -> SimpleNamespace:
    """In place of a file of Qwen3.5's shape in Q4_K: 2.5 GiB for 4B."""
    return SimpleNamespace(label=f"{shape}.gguf", info=lambda name: SimpleNamespace(type=GGMLQuantizationType.Q4_K))


@pytest.fixture(autouse=True)
def much_ram(monkeypatch):
    monkeypatch.setattr(device_module, "free_ram_bytes", lambda: 64 * GIB)


@pytest.mark.parametrize(
    ("info", "own", "shared"),
    [(CARD, 8 * GIB, 24 * GIB), (APU, 10 * GIB, 5 * GIB), (ONE_HEAP, 12 * GIB, 12 * GIB)],
    ids=["card", "apu", "one heap"],
)
def test_each_kind_of_memory_has_its_heap(info, own, shared):
    device = FakeDevice(info)
    assert (device.available_bytes("device"), device.available_bytes("host")) == (own, shared)
    device.take(GIB, "device")
    device.take(GIB // 2, "host")
    both = GIB * 3 // 2
    expected = (own - both, shared - both) if info.one_memory else (own - GIB, shared - GIB // 2)
    assert (device.available_bytes("device"), device.available_bytes("host")) == expected


def test_what_is_beside_a_card_is_the_machine_s(monkeypatch):
    monkeypatch.setattr(device_module, "free_ram_bytes", lambda: GIB)
    assert FakeDevice(CARD).available_bytes("host") == GIB - device_module.CPU_RESERVE_BYTES
    assert FakeDevice(CARD).available_bytes("device") == 8 * GIB


@pytest.mark.parametrize("info", [CARD, APU, ONE_HEAP], ids=["card", "apu", "one heap"])
def test_a_context_fits_the_heap_that_it_lies_in(info):
    """A 4B whose whole context of 262,144 tokens is 8 GiB: on no sum of heaps is it taken for fitting."""
    device, file, config = FakeDevice(info), model("4B"), make_config("4B")
    sizes = fit(file, config, device, LoadOptions())
    bill = memory_bill(file, sizes)
    assert 4096 < sizes.max_context < config.max_position_embeddings or info is ONE_HEAP
    device.require(bill.on_device, "4B", host_bytes=bill.on_host)
    heap = info.heaps[info.device_heap].num_bytes
    taken = bill.total if info.one_memory else bill.on_device
    assert taken <= 0.9 * heap
    if sizes.max_context < config.max_position_embeddings:
        assert taken + 2 * sizes.page_bytes > 0.9 * heap, "and no more than that is left unused"


def test_room_is_left_for_a_draft_on_the_same_heap():
    file, config = model("4B"), make_config("4B")
    alone, beside = (
        fit(file, config, FakeDevice(CARD), LoadOptions(reserve_bytes=reserve)) for reserve in (0, 2 * GIB)
    )
    assert (alone.pages - beside.pages) * alone.page_bytes == pytest.approx(2 * GIB, abs=2 * alone.page_bytes)


@pytest.mark.parametrize(
    ("in_use", "options", "message"),
    [
        (
            ("device", 6 * GIB),
            {},
            r"context of 256 tokens: needs \d,\d+ MiB of the GPU's memory, discrete GPU has 2,048 MiB left$",
        ),
        (("host", 24 * GIB - 1), {}, r": needs \d+ MiB of memory shared with the CPU, discrete GPU has 0 MiB left$"),
        (
            ("device", 0),
            {"reserve_bytes": 5 * GIB},
            r": no room for a KV cache: \d,\d+ MiB without it, 5,120 MiB kept for a draft, of 7,373 MiB on discrete",
        ),
        (
            ("device", 0),
            {"reserve_bytes": 10**15, "max_context": 256},
            r"^reserve_bytes: needs 953,674,316 MiB of the GPU's memory, discrete GPU has 8,192 MiB left$",
        ),
        (("device", 0), {"max_context": 1 << 30}, r"^context of 1073741824 tokens: discrete GPU allows 4,096 MiB"),
    ],
    ids=["card full", "host full", "draft", "draft and context", "one buffer"],
)
def test_what_does_not_fit_says_so_with_the_numbers(in_use, options, message):
    device = FakeDevice(CARD)
    device.take(in_use[1], in_use[0])
    with pytest.raises(OutOfMemoryError, match=message) as caught:
        fit(model("4B"), make_config("4B"), device, LoadOptions(**options))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("reserve", [-1, "x", None, True, 1.5, 2**63])
def test_a_reserve_that_is_no_number_of_bytes(reserve):
    with pytest.raises(RequestError, match="^reserve_bytes: found .*, wanted a whole number from 0 to"):
        LoadOptions(reserve_bytes=reserve)


def test_the_driver_s_budget_counts_and_is_asked_for_again(monkeypatch):
    """Another process takes memory between two loads."""
    budgets = [5 * GIB, 3 * GIB]

    def probed() -> list[DeviceInfo]:
        heaps = Heap(8 * GIB, True, budgets[0]), Heap(24 * GIB, False, 20 * GIB), Heap(256 << 20, True, 256 << 20)
        return [gpu("discrete", NVIDIA, NVIDIA_TYPES, *heaps)]

    monkeypatch.setattr(device_module, "probe", probed)
    device = FakeDevice(probed()[0])
    assert (device.available_bytes(), device.available_bytes("host")) == (5 * GIB, 20 * GIB)
    device.require(4 * GIB, "a model")
    device.take(GIB, "device")
    budgets.pop(0)
    with pytest.raises(OutOfMemoryError, match="another: needs 2,304 MiB of the GPU's memory, .* has 2,048 MiB left"):
        device.require(9 * GIB // 4, "another")
    device.require(2 * GIB, "a smaller one")


@pytest.mark.parametrize(
    ("types", "device_heap", "host_heap"),
    [(NVIDIA_TYPES, 0, 1), (AMD_TYPES, 0, 1), (INTEL_TYPES, 0, 0), ([], 0, 0)],
    ids=["nvidia", "amd", "intel", "none"],
)
def test_heaps_are_those_that_kp_takes(types, device_heap, host_heap):
    """It takes the first memory type with the flags it wants: never NVIDIA's window of 256 MiB."""
    assert (_heap_of(types, 1), _heap_of(types, 6)) == (device_heap, host_heap)


def test_devices_names_the_memory(monkeypatch, capsys):
    infos = [CARD, APU, ONE_HEAP]
    monkeypatch.setattr(devices_command, "probe", lambda: infos)
    devices_command.run(SimpleNamespace(json=False))
    lines = [line for line in capsys.readouterr().out.splitlines() if "memory" in line and "subgroup" in line]
    assert [line.split(";")[0].strip() for line in lines] == [
        "memory 8.0 GiB of its own, 24.0 GiB shared with the CPU",
        "memory 10.0 GiB and 5.0 GiB shared with the CPU: the driver's division of the machine's memory",
        "memory 12.0 GiB, shared with the CPU",
    ]
    devices_command.run(SimpleNamespace(json=True))
    listed = json.loads(capsys.readouterr().out)
    assert [(d["device_heap"], d["host_heap"], len(d["heaps"])) for d in listed] == [(0, 1, 3), (0, 1, 2), (0, 0, 1)]
