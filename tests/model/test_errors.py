"""What a caller may do wrong and what may go wrong below: one clear error, and nothing left behind."""

import json
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest

import vkprefill
from tests.reference.fixtures import model_path
from vkprefill.engine.sizes import MAX_CANDIDATES
from vkprefill.engine.step_input import Best
from vkprefill.vulkan import device
from vkprefill.vulkan import shaders as spirv

BAD_TOKENS = [
    ([], "at least one integer"),
    ([-1], "found -1, wanted 0 to 319"),
    ([0, 320], "found 320, wanted 0 to 319"),
    ([2**70], "token_ids: found object"),
    ([2**64 - 1], "wanted 0 to 319"),
    ([1.0], "token_ids: found float64"),
    ([True], "token_ids: found bool"),
    ([None], "token_ids: found object"),
    ("text", "token_ids: found <U4"),
    ([[1, 2]], r"of shape \(1, 2\)"),
    ([[1], [2, 3]], "token_ids: found"),
    (5, r"of shape \(\)"),
    (None, "token_ids: found object"),
]

BAD_POSITIONS = [
    ([0, 1], "positions: found 2, wanted 3"),
    ([0, 0, 1], "must increase"),
    ([0, 2, 1], "must increase"),
    ([-1, 0, 1], "must increase"),
    ([0, 1, 2**31], r"below 2\^31"),
    (np.array([0, 1, 2**63 + 5], np.uint64), r"below 2\^31"),
    ([0.0, 1.0, 2.0], "positions: found float64"),
    ([[0], [1, 2]], "positions: found"),
    ([], "positions: found"),
    ("abc", "positions: found"),
]


@pytest.mark.parametrize(("token_ids", "message"), BAD_TOKENS, ids=[repr(tokens) for tokens, _ in BAD_TOKENS])
def test_bad_tokens(tiny, token_ids, message):
    cache = tiny.new_cache()
    calls = [tiny.prefill, tiny.logits, lambda tokens: tiny.extend(tokens, cache)]
    for call in calls:
        with pytest.raises(vkprefill.RequestError, match=message):
            call(token_ids)
    assert len(cache) == 0
    cache.close()


@pytest.mark.parametrize("token_id", (-1, 320, 1.5, "a", None, [1], True))
def test_bad_token_to_decode(tiny, token_id):
    cache = tiny.new_cache()
    with pytest.raises(vkprefill.RequestError, match="token_ids: found"):
        tiny.decode(token_id, cache)
    assert len(cache) == 0 and not cache.broken
    cache.close()


@pytest.mark.parametrize(
    ("positions", "message"), BAD_POSITIONS, ids=[repr(positions) for positions, _ in BAD_POSITIONS]
)
def test_bad_positions(tiny, positions, message):
    for call in (tiny.prefill, tiny.logits):
        with pytest.raises(vkprefill.RequestError, match=message):
            call([1, 2, 3], positions)


def test_positions_must_follow_the_cache(tiny):
    cache = tiny.new_cache()
    tiny.extend([1, 2], cache, positions=[3, 9])
    with pytest.raises(vkprefill.RequestError, match="must increase, from above 9"):
        tiny.extend([1], cache, positions=[9])
    tiny.extend([1], cache, positions=[2**31 - 1])
    with pytest.raises(vkprefill.RequestError, match="must increase"):
        tiny.decode(1, cache)
    cache.close()


@pytest.mark.parametrize("count", (0, -1, MAX_CANDIDATES + 1))
def test_bad_number_of_candidates(tiny, count):
    cache = tiny.new_cache()
    for call in (
        lambda: tiny.prefill_candidates([1], cache, Best(count)),
        lambda: tiny.decode_candidates(1, cache, Best(count)),
    ):
        with pytest.raises(vkprefill.RequestError, match="num_candidates"):
            call()
    assert len(cache) == 0
    cache.close()


@pytest.mark.parametrize("tokens", ([320], [-1], ["a"]))
def test_bad_seen_tokens(tiny, tokens):
    cache, best = tiny.new_cache(), Best(1, 0.5, tokens)
    for call in (lambda: tiny.prefill_candidates([1], cache, best), lambda: tiny.decode_candidates(1, cache, best)):
        with pytest.raises(vkprefill.RequestError, match="token_ids"):
            call()
    assert len(cache) == 0
    assert tiny.decode_candidates(1, cache, Best(1))[0].shape == (1,)
    cache.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_type": "q8_0"}, "kv_type: 'q8_0', wanted one of f16, f32"),
        ({"kv_type": None}, "kv_type: None"),
        ({"prefill_chunk": 0}, "prefill_chunk: found 0, wanted 1 to 4096"),
        ({"prefill_chunk": 4097}, "prefill_chunk: found 4097"),
        ({"prefill_chunk": 64.0}, "prefill_chunk: found 64.0"),
        ({"max_context": 0}, "max_context: found 0"),
        ({"max_context": -5}, "max_context: found -5"),
        ({"max_context": 2**31}, "max_context: found 2147483648"),
        ({"max_context": "512"}, "max_context: found '512'"),
    ],
)
def test_bad_load_options(options, message):
    with pytest.raises(vkprefill.RequestError, match=message):
        vkprefill.load(model_path("tiny-a-f32"), **options)


@pytest.mark.parametrize("wanted", (999, "999", "no such device", -1))
def test_device_not_found(wanted):
    with pytest.raises(vkprefill.DeviceError, match="^device "):
        vkprefill.load(model_path("tiny-a-f32"), wanted)


@pytest.mark.parametrize("max_context", (512, None))
def test_out_of_memory_is_refused_before_anything_is_allocated(monkeypatch, max_context):
    opened = []
    open_device = device.Device.open

    def never(label, *_, **__):
        raise AssertionError(f"{label} allocated")

    def opening(wanted=None):
        opened.append(open_device(wanted))
        monkeypatch.setattr(opened[-1], "buffer", never)
        return opened[-1]

    monkeypatch.setattr(device.Device, "open", opening)
    monkeypatch.setattr(device.Device, "available_bytes", lambda *_: 3 << 20)
    with pytest.raises(vkprefill.OutOfMemoryError, match=r"needs \d+ MiB.* has 3 MiB left"):
        vkprefill.load(model_path("tiny-a-f32"), max_context=max_context)
    assert opened[0].closed


def test_free_ram_decides_on_a_cpu_device(tiny, monkeypatch):
    if tiny.device.info.type != "cpu":
        pytest.skip("a GPU's memory is its own")
    monkeypatch.setattr(device, "free_ram_bytes", lambda: device.CPU_RESERVE_BYTES + 1000)
    assert tiny.device.available_bytes() == 1000
    with pytest.raises(vkprefill.OutOfMemoryError, match="MiB left"):
        vkprefill.load(model_path("tiny-a-f32"), max_context=512)


def test_only_snapshots_need_more_memory(tiny, prompt, monkeypatch):
    cache = tiny.new_cache()
    tiny.extend(prompt[:20], cache)
    want = tiny.prefill(prompt[:21])
    with monkeypatch.context() as patch:
        patch.setattr(device.Device, "available_bytes", lambda *_: 0)
        with pytest.raises(vkprefill.OutOfMemoryError, match="snapshot"):
            cache.snapshot()
        assert np.allclose(tiny.prefill(prompt[20:21], cache=cache), want, atol=1e-3)
    cache.close()


def test_lost_device(prompt):
    """kp reports it by a RuntimeError of eval; everything after it fails with the same kind of error."""

    def lose() -> None:
        raise RuntimeError("VK_ERROR_DEVICE_LOST")

    with vkprefill.load(model_path("tiny-a-f32"), max_context=1024) as model:
        cache, idle = model.new_cache(), model.new_cache()
        model.extend(prompt[:10], cache)
        snapshot = cache.snapshot()
        model.runner.decode_program._sequences[:] = [types.SimpleNamespace(eval=lose, record=lambda _: None)]
        with pytest.raises(vkprefill.DeviceError, match="lost or failed: VK_ERROR_DEVICE_LOST"):
            model.decode(1, cache)
        assert model.device.lost
        for call in (
            lambda: model.prefill(prompt[:5]),
            lambda: model.decode(1, idle),
            lambda: model.logits([1]),
            lambda: cache.restore(snapshot),
        ):
            with pytest.raises(vkprefill.DeviceError, match="lost earlier; load the model again"):
                call()
        cache.reset()
        cache.close()
        idle.close()
    assert np.isfinite(_fresh_logits(prompt[:5])).all()


def _fresh_logits(tokens: list[int]) -> np.ndarray:
    with vkprefill.load(model_path("tiny-a-f32"), max_context=512) as model:
        return model.prefill(tokens)


def test_device_lost_in_a_prefill(prompt):
    def lose() -> None:
        raise RuntimeError("VK_ERROR_DEVICE_LOST")

    with vkprefill.load(model_path("tiny-a-f32"), max_context=512) as model:
        cache = model.new_cache()
        model.extend(prompt[:10], cache)
        model.runner.plain_program(10)._sequences[-1:] = [types.SimpleNamespace(eval=lose, record=lambda _: None)]
        with pytest.raises(vkprefill.DeviceError, match="lost or failed"):
            model.prefill(prompt[10:20], cache=cache)
        with pytest.raises(vkprefill.VkPrefillError):
            model.decode(1, cache)


def test_logits_that_are_not_finite(tiny, prompt, monkeypatch):
    cache = tiny.new_cache()
    tiny.extend(prompt[:20], cache)
    head = tiny.runner.head_program.run

    def poisoned() -> None:
        head()
        tiny.runner.scratch.logits.view()[0, 3] = np.nan

    with monkeypatch.context() as patch, pytest.raises(vkprefill.VkPrefillError, match="NaN or infinity"):
        patch.setattr(tiny.runner.head_program, "run", poisoned)
        tiny.prefill(prompt[20:30], cache=cache)
    assert len(cache) == 20
    cache.close()


@pytest.fixture
def own_shaders(tmp_path, monkeypatch):
    """A copy of the compiled shaders for a test to damage."""
    folder = tmp_path / "spirv"
    shutil.copytree(spirv.SPIRV, folder)
    monkeypatch.setattr(spirv, "SPIRV", folder)
    spirv.manifest.cache_clear()
    spirv.load_shader.cache_clear()
    yield folder
    spirv.manifest.cache_clear()
    spirv.load_shader.cache_clear()


def change_source_hash(folder) -> None:
    content = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**content, "sources": "0" * 64}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "manifest.json").unlink(), "manifest.json is missing or damaged"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json is missing or damaged"),
        (lambda folder: (folder / "manifest.json").write_bytes(b"\xff"), "manifest.json is missing or damaged"),
        (lambda folder: (folder / "swiglu.spv").unlink(), "shader swiglu: .* is missing or damaged"),
        (lambda folder: (folder / "swiglu.spv").write_bytes(b"junk"), "shader swiglu: .* is missing or damaged"),
        (change_source_hash, "are not those of"),
    ],
    ids=["no manifest", "cut off", "not UTF-8", "no shader", "damaged shader", "stale"],
)
def test_damaged_shaders(own_shaders, damage, message):
    if damage is change_source_hash and not spirv.SOURCES.is_dir():
        pytest.skip("no shader sources beside the package")
    damage(own_shaders)
    with pytest.raises(vkprefill.DeviceError, match=message) as caught:
        vkprefill.load(model_path("tiny-a-f32"), max_context=512)
    assert "run: " in str(caught.value) and "\n" not in str(caught.value)


def test_without_kp():
    program = (
        "import sys; sys.modules['kp'] = None\n"
        "from vkprefill.cli.main import main; sys.exit(main(['generate', '-p', 'x', '-m', sys.argv[1]]))"
    )
    command = [sys.executable, "-c", program, str(model_path("tiny-a-f32"))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (result.returncode, result.stdout) == (1, "")
    assert (
        result.stderr.startswith("Error: kp (Kompute's Python package) cannot be imported")
        and "make setup" in result.stderr
    )
    assert result.stderr.count("\n") == 1
