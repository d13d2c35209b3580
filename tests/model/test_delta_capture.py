"""Rows of delta-net heads: with the values of their tokens they are the layer's output, whatever calls a prompt came
in; against the float64 formula, and llama.cpp's arrays.
"""

import numpy as np
import pytest

import vkprefill
from tests.reference import delta_pattern, points
from tests.reference.fixtures import FIXTURES, INTERMEDIATE, load_case, model_path, rms
from tests.reference.forward import ReferenceModel
from vkprefill import AttentionCapture, OutOfMemoryError, RequestError
from vkprefill.engine import delta_capture
from vkprefill.engine.model import Model
from vkprefill.vulkan import host_memory

CHUNK = 32
EXACT = 1e-5  # of the RMS of a head's output: sums of float32 products in another order
ROWS = 1e-3  # absolute, of rows of a few tenths: keys and gates of a whole model are INTERMEDIATE of their RMS off


@pytest.fixture(scope="module", params=[*FIXTURES, "moe-b-q4km"])
def chunked(request, load_model):
    return load_model(request.param, kv_type="f32", prefill_chunk=CHUNK, max_context=1024)


@pytest.fixture(scope="module")
def one(load_model):
    return load_model("tiny-c-q4km", kv_type="f32", prefill_chunk=CHUNK, max_context=1024)


@pytest.fixture
def capture():
    return AttentionCapture(layers=(), delta_layers=None)


def recorded(model: Model, ids: list[int], **options):
    """Values and outputs of every delta-net layer and token, in the same chunks."""
    names = [(name, layer, "linear_attn") for layer in model.config.linear_layers for name in ("v", "recurrence_out")]
    return model.record(ids, names, tokens="all", **options)


def check_outputs(capture: AttentionCapture, found, slots: list[int], first: int = 0) -> None:
    """P v + rest against what was recorded of all tokens: slots of the queries; no columns before `first`."""
    for layer, rows in capture.delta_pattern.items():
        rest = capture.delta_rest[layer]
        keys = rows.shape[2]
        assert rows.dtype == rest.dtype == np.float32
        values, outputs = found["v", layer, "linear_attn"][:keys], found["recurrence_out", layer][slots]
        assert rows.shape == (values.shape[1], len(slots), keys) and rest.shape == outputs.transpose(1, 0, 2).shape
        assert not rows[..., :first].any() and (first > 0 or not rest.any())
        mixed = np.einsum("hqs,shv->hqv", rows.astype(float), values) + rest
        for head, (got, want) in enumerate(zip(mixed, outputs.transpose(1, 0, 2), strict=True)):
            error = np.abs(got - want).max() / rms(want)
            assert error <= EXACT, f"layer {layer}, head {head}: {error:.1e} of the RMS"
        for i, slot in enumerate(slots):
            assert not rows[:, i, slot + 1 :].any(), "causal"


def check_rows(model: Model, capture: AttentionCapture, slots: list[int], first: int = 0) -> None:
    """Against the float64 model and the formula."""
    reference = ReferenceModel(model_path(model.path.stem))
    found = points.run(reference, capture.token_ids, len(capture.token_ids), capture.key_positions)
    for layer, rows in capture.delta_pattern.items():
        q, k, decay, beta = (found[f"blocks.{layer}.linear_attn.hook_{x}"] for x in ("q", "k", "log_decay", "beta"))
        want, _ = delta_pattern.rows(q, k, decay, beta, slots, first)
        assert np.abs(rows - want).max() <= ROWS


def test_prompt_in_calls_and_chunks_and_decode(chunked, prompt, capture):
    """One capture for two calls of several chunks, then tokens of decode; each call's queries over all keys."""
    found = recorded(chunked, prompt[:70], steps="both", max_tokens=3)
    cache = chunked.new_cache()
    capture.queries = (31, 0, -1)
    chunked.prefill(prompt[:64], cache=cache, capture=capture)
    assert sorted(capture.delta_pattern) == list(chunked.config.linear_layers) and not capture.pattern
    check_outputs(capture, found, [31, 0, 63])
    capture.queries = None
    chunked.prefill(prompt[64:70], cache=cache, capture=capture)
    check_outputs(capture, found, list(range(64, 70)))
    for i, token in enumerate(found.generated_ids):
        chunked.decode(token, cache, capture)
        check_outputs(capture, found, [70 + i])
    check_rows(chunked, capture, [len(cache) - 1])
    cache.close()


def test_window_that_begins_later(one, prompt, capture):
    """Columns before the first captured call are 0, and what they give is the rest; after decode, whose last token is
    not yet in the state's memory then.
    """
    found = recorded(one, prompt[:60], steps="both", max_tokens=2)
    cache, generated = one.new_cache(), found.generated_ids
    one.prefill(prompt[:60], cache=cache)
    one.decode(generated[0], cache)
    one.decode(generated[1], cache, capture)
    check_outputs(capture, found, [61], first=61)
    check_rows(one, capture, [61], first=61)
    cache.reset()
    one.prefill(prompt[:20], cache=cache)
    one.prefill(prompt[20:40], cache=cache, capture=capture)
    one.prefill(prompt[40:45], cache=cache)  # not captured: what follows begins anew
    one.prefill(prompt[45:60], cache=cache, capture=capture)
    check_outputs(capture, found, [59], first=45)
    cache.close()


def test_gaps_and_tokens_left_out(one, prompt, capture):
    """Positions with gaps, as a sparse prefill leaves them, in several calls and with softmax rows beside."""
    kept = [t for t in range(200) if t % 7 in (0, 3, 4)]
    ids = [prompt[t] for t in kept]
    found, capture.layers, capture.queries = recorded(one, ids, positions=kept), None, (0, 20, -1)
    cache = one.new_cache()
    one.prefill(ids[:50], kept[:50], cache, capture)
    check_outputs(capture, found, [0, 20, 49])
    one.prefill(ids[50:], kept[50:], cache, capture)
    slots = [50, 70, len(ids) - 1]
    check_outputs(capture, found, slots)
    check_rows(one, capture, slots)
    assert capture.key_positions.tolist() == kept and capture.query_positions.tolist() == [kept[t] for t in slots]
    assert list(capture.pattern) == list(one.config.attention_layers)
    assert np.abs(capture.pattern[3].sum(-1) - 1).max() <= 1e-5
    cache.close()


def test_going_back(one, prompt, capture):
    """To a snapshot inside the window: tokens before it stay; a state that a caller sets begins it anew."""
    found, cache = recorded(one, prompt[:50]), one.new_cache()
    one.prefill(prompt[:30], cache=cache, capture=capture)
    snapshot = cache.snapshot()
    one.prefill(prompt[100:120], cache=cache, capture=capture)
    cache.restore(snapshot)
    one.prefill(prompt[30:50], cache=cache, capture=capture)
    check_outputs(capture, found, [49])
    assert capture.delta_pattern[0][..., :30].any()
    cache.restore(snapshot)
    state = cache.recurrent_state(0)
    cache.set_recurrent_state(0, 2 * state)
    one.prefill(prompt[30:50], cache=cache, capture=capture)
    assert not capture.delta_pattern[0][..., :30].any()
    doubled = capture.delta_rest[0].copy()
    cache.restore(snapshot)
    one.prefill(prompt[30:50], cache=cache, capture=capture)
    assert np.abs(doubled - 2 * capture.delta_rest[0]).max() <= EXACT * rms(doubled)
    other = one.new_cache()
    one.prefill(prompt[:50], cache=other, capture=capture)
    check_outputs(capture, found, [49])
    cache.close()
    other.close()


def test_many_segments_and_queries(one, prompt, capture, monkeypatch):
    """Bit for bit what whole segments and batches give."""
    capture.queries = None
    one.prefill(prompt[:150], capture=capture)
    whole = {layer: rows.copy() for layer, rows in capture.delta_pattern.items()}
    for name, value in (("SEGMENT", 48), ("PAGE", 16), ("QUERIES", 5)):
        monkeypatch.setattr(delta_capture, name, value)
    small, cache = AttentionCapture(layers=(), queries=None, delta_layers=(0, 2)), one.new_cache()
    one.prefill(prompt[:150], cache=cache, capture=small)
    for layer, rows in small.delta_pattern.items():
        np.testing.assert_array_equal(rows, whole[layer])
    found = recorded(one, prompt[:150], steps="both", max_tokens=20)
    for token in found.generated_ids:
        one.decode(token, cache, small)
    check_outputs(small, found, [len(cache) - 1])
    cache.close()


@pytest.mark.parametrize("precision", ["full", "half"])
def test_logits_are_the_same_bits(load_model, prompt, precision):
    model = load_model("tiny-c-q4km", precision=precision, prefill_chunk=CHUNK)
    plain, captured, capture = model.new_cache(), model.new_cache(), AttentionCapture(delta_layers=None)
    for tokens in (prompt[:70], prompt[70:71]):
        want = model.prefill(tokens, cache=plain)
        assert np.array_equal(model.prefill(tokens, cache=captured, capture=capture), want)
    for token in prompt[71:74]:
        want = model.decode(token, plain)
        assert np.array_equal(model.decode(token, captured, capture), want)
    plain.close()
    captured.close()


@pytest.mark.parametrize("name", FIXTURES)
def test_llama_cpp(load_model, name, capture):
    """Its values mixed by our rows are its outputs; of the first layer it has stored both."""
    model, case = load_model(name, kv_type="f32"), load_case(name, "p65")
    model.prefill(case.token_ids, case.positions, capture=capture)
    want = case.arrays["attn_output-0"][-1:]
    rows, values = capture.delta_pattern[0], case.arrays["v_conv_predelta-0"]
    assert len(values) == rows.shape[2]
    mixed = np.einsum("hqs,shv->qhv", rows, values.reshape(len(values), len(rows), -1))
    assert np.abs(mixed.reshape(want.shape) - want).max() <= INTERMEDIATE * rms(want)


# -- errors and memory -------------------------------------------------------------------------------------------------


def test_bad_layers(one):
    for layers in ([3], [0, 99], [-1]):
        with pytest.raises(
            RequestError, match=rf"delta_layers: {layers[-1]} is no delta-net layer, wanted some of 0, "
        ):
            one.prefill([1, 2], capture=AttentionCapture(delta_layers=layers))
    with pytest.raises(RequestError, match="layers: none given"):
        one.prefill([1, 2], capture=AttentionCapture(layers=(), delta_layers=()))


def test_caches_that_it_cannot_be_taken_of(one, load_model, prompt, capture):
    """Of another model, or with layers that have some of its tokens only."""
    with pytest.raises(RequestError, match="cache: wanted one made by this model's new_cache"):
        one.prefill(prompt[:5], cache=load_model("tiny-a-f32", kv_type="f32").new_cache(), capture=capture)
    cache = one.new_cache()
    one.runner.split.read(prompt[:50], None, cache, 1)
    one.prefill([prompt[0], prompt[49]], [0, 49], cache)
    for call in (one.prefill, one.decode):
        with pytest.raises(RequestError, match="attention rows can be taken of others only"):
            call(prompt[50:51] if call == one.prefill else prompt[50], cache=cache, capture=capture)
    cache.close()


def test_memory_is_refused_with_the_numbers(one, prompt, monkeypatch):
    cache, before = one.new_cache(), one.device.allocated["capture"]
    capture = AttentionCapture(layers=(), queries=None, delta_layers=None)
    monkeypatch.setattr(host_memory, "free_ram_bytes", lambda: host_memory.RESERVE_BYTES + (1 << 20))
    heads, layers = one.config.linear_num_value_heads, len(one.config.linear_layers)
    what = (
        rf"delta-net rows of 300 queries, {heads} heads, 300 keys in {layers} layers: needs \d+ MiB .* 1 MiB are free"
    )
    with pytest.raises(OutOfMemoryError, match=what):
        one.prefill(prompt, cache=cache, capture=capture)
    assert len(cache) == 0
    monkeypatch.undo()
    with monkeypatch.context() as patch:
        patch.setattr(type(one.device), "available_bytes", lambda *_: 0)
        with pytest.raises(OutOfMemoryError, match=r"300 keys in \d layers: their keys: needs \d+ MiB.* has 0 MiB"):
            one.prefill(prompt, cache=cache, capture=capture)
    del capture
    cache.close()
    assert one.device.allocated["capture"] == before


def test_memory_comes_back(one, prompt):
    """While a capture lives its buffers do; when it is gone so are they."""
    before, bound = dict(+one.device.allocated), len(one.device.pipelines.bound)
    capture = AttentionCapture(delta_layers=(0,))
    for length in (5, 300, 20, 300):
        one.prefill(prompt[:length], capture=capture)
    rows = capture.delta_pattern[0]
    copied = rows.copy()
    capture.delta_layers = (1,)
    one.prefill(prompt[:5], capture=capture)
    assert list(capture.delta_pattern) == [1] and one.device.allocated["capture"] > 0
    del capture
    assert dict(+one.device.allocated) == before and len(one.device.pipelines.bound) <= bound
    assert np.array_equal(rows, copied), "the rows are the caller's"


def test_interrupted(one, prompt, capture):
    """The cache goes back, and the window with it."""
    found, cache = recorded(one, prompt[:60]), one.new_cache()
    one.prefill(prompt[:20], cache=cache, capture=capture)
    rows = capture.delta_pattern[0].copy()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        one.prefill(prompt[20:250], cache=cache, capture=capture, progress=stop)
    assert len(cache) == 20 and np.array_equal(capture.delta_pattern[0], rows)
    one.prefill(prompt[20:60], cache=cache, capture=capture)
    check_outputs(capture, found, [59])
    cache.close()


def test_one_object_for_two_models(load_model, prompt, capture):
    for name in ("tiny-a-f32", "tiny-c-q4km", "tiny-a-f32"):
        model = load_model(name, kv_type="f32")
        model.prefill(prompt[:9], capture=capture)
        check_outputs(capture, recorded(model, prompt[:9]), [8])


def test_capture_outlives_its_model(prompt, capture):
    with vkprefill.load(model_path("tiny-a-f32"), max_context=64) as model:
        model.prefill(prompt[:5], capture=capture)
    assert capture.delta_pattern[0].shape[1:] == (1, 5)
