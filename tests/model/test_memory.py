"""The memory bill is what gets allocated, and needs no GPU to be made."""

import json
import subprocess
import sys
from dataclasses import asdict

import numpy as np
import pytest

import vkprefill
from benchmarks.memory import driver_memory, in_new_process, model_memory
from tests.model.conftest import BUILT_IN
from tests.reference.fixtures import FIXTURES, model_path
from vkprefill.engine.memory import memory_bill
from vkprefill.engine.sizes import Sizes
from vkprefill.gguf.config import ModelConfig
from vkprefill.gguf.file import open_gguf
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.probe import choose
from vkprefill.vulkan.profiles import LARGEST


def bill_of_allocations(model: vkprefill.Model) -> dict[str, int]:
    return {kind: count for kind, count in model.device.allocated.items() if count}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tiny-a-f32", {"max_context": 2, "prefill_chunk": 1, "kv_type": "f16"}),
        ("tiny-b-f32", {"max_context": 257, "prefill_chunk": 33, "kv_type": "f32"}),
        ("tiny-c-q4km", {"max_context": 1000, "prefill_chunk": 200, "kv_type": "f16"}),
        ("tiny-d-mixed", {"max_context": None, "prefill_chunk": None, "kv_type": "f32"}),
        ("tiny-c-q4km", {"max_context": 300, "prefill_chunk": 33, "kv_type": "f16", "precision": "half"}),
        ("tiny-d-mixed", {"max_context": 300, "prefill_chunk": 33, "kv_type": "f16", "mtp": None}),
        ("mtp-c-mixed", {"max_context": 300, "prefill_chunk": 33, "kv_type": "f16", "precision": "half"}),
    ],
)
def test_bill_is_what_is_allocated(name, options, prompt):
    with vkprefill.load(model_path(name), **options) as model:
        assert bill_of_allocations(model) == {kind: count for kind, count in asdict(model.memory).items() if count}
        assert model.memory.total == model.device.allocated.total()
        assert model.memory.on_host == model.device._ledger.by_memory()["host"]
        cache = model.new_cache()
        model.extend(prompt[: min(200, model.max_context - 1)], cache)
        model.decode(1, cache)
        cache.close()
        assert model.device.allocated.total() == model.memory.total, "running takes no more"
        model.logits([1])
        extra = bill_of_allocations(model).pop("logits")
        assert model.device.allocated.total() == model.memory.total + extra, "but the rows of logits() do"


def test_activations_start_as_zeros(monkeypatch):
    """Also in memory that held something else: denormal numbers in rows past the last token slow products down."""
    cleared = []

    def clear(device: Device, buffers: list[Buffer]) -> None:
        for buffer in buffers:
            device.upload(buffer, [np.ones(buffer.num_bytes // 4, np.uint32)])
        cleared.extend(buffers)
        original(device, buffers)

    original = Device.clear
    monkeypatch.setattr(Device, "clear", clear)
    with vkprefill.load(model_path("tiny-c-q4km"), max_context=256) as model:
        assert cleared == list(model.runner.scratch.buffers())
        assert not any(buffer.read().any() for buffer in cleared)


def test_process_grows_by_the_bill():
    """Within 5 %, beside what the driver takes, which the same pipelines over next to no memory show."""
    if "llvmpipe" not in choose(None).driver:
        pytest.skip("a GPU's memory is not the process's, and what other CPU drivers take depends on the sizes")
    bill, _, grown, programs = in_new_process(model_memory, BUILT_IN, 1 << 18)  # nearly all is KV cache
    assert bill > 256 << 20, "so that 5 % are more than what the interpreter's memory changes by"
    assert grown - in_new_process(driver_memory, programs) == pytest.approx(bill, rel=0.05)


@pytest.mark.parametrize("name", FIXTURES)
def test_bill_grows_with_what_it_depends_on(name):
    file = open_gguf(model_path(name))
    config = ModelConfig.from_gguf(file)

    def bill(**changes: object):
        settings = {"max_context": 512, "kv_type": "f16", "prefill_chunk": 64, **changes}
        return memory_bill(file, Sizes(config, LARGEST, **settings))

    first = bill()
    longer, wider, more = bill(max_context=1024), bill(kv_type="f32"), bill(prefill_chunk=128)
    halves = bill(half=True)
    assert longer.kv_cache == 2 * first.kv_cache == wider.kv_cache
    assert longer.exchange - first.exchange == 2 * 4, "two pages more in the page table"
    assert more.activations > first.activations and more.kv_cache == first.kv_cache
    room = 64 * (max(config.hidden_size, config.intermediate_size, config.q_dim, config.linear_value_dim) * 2 + 4)
    assert halves.activations - first.activations == room, "a row of halves and its factor for each token"
    assert first.total == sum(asdict(first).values()) == first.on_device + first.on_host


def test_inspect_needs_no_gpu():
    """With kp not importable and no Vulkan loader to be found."""
    program = (
        "import sys, ctypes; sys.modules['kp'] = None\n"
        "def no_vulkan(*_): raise OSError('no such file')\n"
        "ctypes.CDLL = no_vulkan\n"
        "from vkprefill.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "inspect", "--json", "-m", str(model_path("tiny-a-f32"))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (result.returncode, result.stderr) == (0, "")
    assert json.loads(result.stdout)["memory"]["total"] > 0
