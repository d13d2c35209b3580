"""Prefill's products of halves in whole models: how far logits move, what stays float32, and that answers do not."""

import contextlib
import logging

import numpy as np
import pytest

import vkprefill
from tests.model.conftest import BUILT_IN
from tests.model.sparse_requests import GREEDY
from tests.prompts import EACH
from tests.reference.fixtures import model_path
from tests.reference.forward import ReferenceModel
from vkprefill.engine import halves
from vkprefill.engine.halves import takes_halves
from vkprefill.engine.memory import LoadOptions, fit
from vkprefill.generation.prompt import encode_prompt
from vkprefill.gguf.config import ModelConfig
from vkprefill.gguf.file import open_gguf
from vkprefill.specprefill import calibration
from vkprefill.vulkan.companion import DOT2, Abilities

# Of each model: ||difference|| / ||reference|| of the logits of a sequence, against float64. Measured: 2.4e-3, 1.2e-3,
# 4e-4, 7e-4. (The weights of the first two are random: less of what they do comes to the same in the end.)
LIMITS = {"tiny-c-q4km": 5e-3, "tiny-d-mixed": 5e-3, "built-in": 1e-3, "built-in draft": 2e-3}
PATHS = {"built-in": BUILT_IN, "built-in draft": BUILT_IN.with_name("draft.gguf")}
FLOATS = "tiny-a-f32"  # all its matrices are float32
MAX_TOKENS = 48
SETTINGS = vkprefill.SpecPrefillConfig(break_even=False)


@pytest.fixture(scope="module")
def built_in_half(load_model):
    return load_model("built-in", max_context=4096, precision="half")


@pytest.fixture(scope="module")
def built_in_half_draft():
    with vkprefill.load(PATHS["built-in draft"], max_context=4096, precision="half") as draft:
        yield draft


@pytest.mark.parametrize("name", LIMITS)
def test_logits(name, prompt):
    path = PATHS.get(name) or model_path(name)
    reference, ids = ReferenceModel(path), np.array(prompt[:100])
    want = reference.forward(ids, np.arange(len(ids)), reference.new_state())["result_output"]
    with vkprefill.load(path, max_context=512, kv_type="f32", precision="half") as model:
        got = model.logits(ids)
        assert model.precision == "half" and "rms_norm_half" in model.kernels()
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    assert 1e-5 < error <= LIMITS[name], "less would be float32"


def test_decode_is_float32_bit_for_bit(load_model, prompt):
    """One row goes the same way in either precision."""
    rows = []
    for precision in ("full", "half"):
        model = load_model("tiny-c-q4km", precision=precision)
        cache = model.new_cache()
        rows.append([model.decode(token_id, cache) for token_id in prompt[:20]])
        cache.close()
    np.testing.assert_array_equal(*rows)


def test_runs_of_a_few_rows_are_float32(load_model):
    forward = load_model("tiny-c-q4km", precision="half").runner.forward
    short, long = (forward.record_trunk("test", rows).shaders for rows in (halves.SHORT_RUN, halves.SHORT_RUN + 1))
    assert not any("half" in name or "dot2" in name for name in short)
    assert {"rms_norm_half", "swiglu_half", "gated_norm_half", "attention_gate_half"} <= long


def test_weights_of_other_ranges_are_float32(load_model, prompt):
    rows = [load_model(FLOATS, kv_type="f32", precision=precision).prefill(prompt) for precision in ("full", "half")]
    np.testing.assert_array_equal(*rows)


def test_attention_alone(load_model, prompt):
    """Where nothing else is of halves: how far they move the logits. A float32 cache keeps float32 products."""
    full, half = (load_model(FLOATS, kv_type="f16", precision=precision) for precision in ("full", "half"))
    want, got = full.logits(prompt), half.logits(prompt)
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    assert 1e-6 < error <= 1e-3, "less would be float32; measured: 5e-5"
    forms = {"attention_half", "attention_dot2"}
    floats = load_model(FLOATS, kv_type="f32", precision="half")
    assert [len(forms.intersection(model.kernels())) for model in (full, half, floats)] == [0, 1, 0]


def test_softmax_rows_are_float32(load_model, prompt):
    """Of the same cache: the rows do not change with the precision, nor the logits with the rows."""
    captures = [vkprefill.AttentionCapture() for _ in range(2)]
    models = [load_model(FLOATS, kv_type="f16", precision=precision) for precision in ("full", "half")]
    for model, capture in zip(models, captures, strict=True):
        logits = model.prefill(prompt, capture=capture)
        np.testing.assert_array_equal(model.prefill(prompt), logits)
    first = models[0].config.attention_layers[0]
    np.testing.assert_array_equal(captures[0].pattern[first], captures[1].pattern[first])


def test_ways_to_the_same_logits(load_model, prompt):
    """Where a prompt is cut changes no more than in float32: rows do not depend on their neighbours."""
    model = load_model("tiny-c-q4km", kv_type="f32", precision="half")
    want, cache = model.prefill(prompt[:150]), model.new_cache()
    for part in (prompt[:3], prompt[3:70], prompt[70:150]):
        got = model.prefill(part, cache=cache)
    cache.close()
    np.testing.assert_allclose(got, want, atol=1e-3 * float(np.sqrt(np.mean(want**2))))
    np.testing.assert_array_equal(model.prefill(prompt[:150]), want)


@pytest.mark.parametrize(("layer", "kind"), [(1, "state of gated delta-net"), (3, "keys or values of full-attention")])
def test_what_overflows_float32_is_named(tmp_path, layer, kind):
    """Halves of such rows are NaN, in every product with them."""
    source = model_path("tiny-c-q4km")
    info = open_gguf(source).info(f"blk.{layer}.attn_norm.weight")
    content = bytearray(source.read_bytes())
    content[info.offset : info.offset + info.num_bytes] = np.full(info.num_bytes // 4, 3e38, np.float32).tobytes()
    path = tmp_path / "spoilt.gguf"
    path.write_bytes(content)
    with vkprefill.load(path, max_context=256, kv_type="f32", precision="half") as model:
        with pytest.raises(vkprefill.VkPrefillError, match=f"{kind} layer {layer}"):
            model.prefill([1, 2, 3])


@pytest.mark.parametrize("prompt", EACH)
def test_the_same_answer(built_in, built_in_half, prompt):
    """Also where it is a tie but for less than halves move the logits (benchmarks/precision_answers.json)."""
    full, half = (
        vkprefill.generate(m, prompt.messages, sampling=GREEDY, max_tokens=MAX_TOKENS)
        for m in (built_in, built_in_half)
    )
    assert full.token_ids == half.token_ids and full.text == half.text
    assert prompt.answer in (None, full.text)


@pytest.mark.parametrize("prompt", EACH)
def test_the_same_tokens_are_kept(built_in, draft, built_in_half, built_in_half_draft, prompt):
    ids = encode_prompt(built_in, prompt.messages).token_ids
    kept = []
    for pair in ((built_in, draft), (built_in_half, built_in_half_draft)):
        with contextlib.closing(vkprefill.SpecPrefill(*pair, SETTINGS)) as spec:
            kept.append(spec.score(ids).kept)
    np.testing.assert_array_equal(*kept)


def test_speeds_are_told_apart(load_model):
    full, half = (load_model("tiny-c-q4km", precision=precision) for precision in ("full", "half"))
    assert calibration._key(full) != calibration._key(half)


# -- which precision ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("precision", "has_dot2", "wanted"),
    [("auto", True, True), ("auto", False, False), ("half", True, True), ("half", False, True), ("full", True, False)],
)
def test_choice(precision, has_dot2, wanted):
    assert takes_halves(precision, has_dot2) is wanted


def test_a_detour_is_told_once(device, caplog, monkeypatch):
    """Not where the device has the instruction, nor in full precision."""
    file = open_gguf(model_path(FLOATS))
    config = ModelConfig.from_gguf(file)
    halves.tell_of_detour.cache_clear()
    with caplog.at_level(logging.WARNING, "vkprefill"):
        for features, precision in ((DOT2, "half"), ((), "full"), ((), "half"), ((), "half"), ((), "auto")):
            monkeypatch.setattr(device, "abilities", Abilities(frozenset(features)))
            fit(file, config, device, LoadOptions(256, precision=precision))
    assert [r.getMessage() for r in caplog.records] == [
        f"precision half: {device.info.name} has no instruction for sums of products of halves; they are converted, "
        "which gives the same sums and is slower than full"
    ]


def test_unknown_precision():
    with pytest.raises(vkprefill.RequestError, match="precision: 'bf16', wanted one of auto, full, half"):
        vkprefill.load(model_path(FLOATS), precision="bf16")
