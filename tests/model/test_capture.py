"""Attention capture: the rows of llama.cpp and of the reference, logits that do not change, memory that comes back."""

import gc

import numpy as np
import pytest

import vkprefill
from tests.reference.fixtures import FIXTURES, SOFTMAX_ROWS, load_case, model_path
from tests.reference.forward import ReferenceModel
from vkprefill import AttentionCapture

CHUNK = 32


@pytest.fixture(scope="module", params=["tiny-b-f32", "tiny-c-q4km"])
def chunked(request, load_model):
    """Chunks of 32 tokens."""
    return load_model(request.param, kv_type="f32", prefill_chunk=CHUNK, max_context=1024)


@pytest.fixture
def cache(chunked):
    made = chunked.new_cache()
    yield made
    made.close()


def reference_rows(name: str, *parts: tuple[list[int], list[int]]) -> dict[int, np.ndarray]:
    """float64 [H, T, S] by layer, of the last part's queries."""
    model = ReferenceModel(model_path(name))
    state = model.new_state()
    for token_ids, positions in parts:
        out = model.forward(token_ids, positions, state)
    return {int(name.split("-")[1]): rows for name, rows in out.items() if name.startswith("kq_soft_max")}


def check_capture(capture: AttentionCapture, expected: dict[int, np.ndarray], slots: list[int]) -> None:
    """Rows against the reference's; they sum to 1 and are causal. slots: cache slots of the queries."""
    assert list(capture.pattern) == sorted(expected)
    for layer, rows in capture.pattern.items():
        assert rows.dtype == np.float32 and rows.flags.c_contiguous and rows.flags.owndata
        assert rows.shape == expected[layer].shape
        assert np.abs(rows - expected[layer]).max() <= SOFTMAX_ROWS
        assert np.abs(rows.sum(-1, dtype=np.float64) - 1).max() <= 1e-5
        for i, slot in enumerate(slots):
            assert not rows[:, i, slot + 1 :].any(), "causal"


# -- llama.cpp ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case_name", ["p1", "p7", "p200", "gaps"])
@pytest.mark.parametrize("name", FIXTURES)
def test_rows_of_llama_cpp(load_model, name, case_name):
    model, case = load_model(name, kv_type="f32"), load_case(name, case_name)
    capture, cache = AttentionCapture(queries=None if case_name == "p7" else (-1,)), model.new_cache()
    compared = 0
    for call, (token_ids, positions) in enumerate(case.parts()):
        model.prefill(token_ids, positions, cache, capture)
        for layer in model.config.attention_layers:
            key = f"kq_soft_max-{layer}"
            key = key if call == len(case.calls) - 1 else f"call{call}/{key}"
            if key in case.arrays:
                stored = case.arrays[key]
                assert capture.pattern[layer].shape == stored.shape
                assert np.abs(capture.pattern[layer] - stored).max() <= SOFTMAX_ROWS, key
                compared += 1
        assert capture.token_ids.tolist() == case.token_ids[: len(cache)].tolist()
        assert capture.key_positions.tolist() == case.positions[: len(cache)].tolist()
        assert capture.query_positions[-1] == positions[-1]
    assert compared == len(model.config.attention_layers) * (2 if case_name == "gaps" else 1)
    cache.close()


# -- bit for bit -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_type", ["f16", pytest.param("f32", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", FIXTURES)
def test_logits_are_the_same_bits(load_model, prompt, name, kv_type):
    model = load_model(name, kv_type=kv_type)
    plain, captured = model.new_cache(), model.new_cache()
    some, every = AttentionCapture(), AttentionCapture(queries=None)
    for tokens, capture in ((prompt[:150], every), (prompt[150:151], some), (prompt[151:240], some)):
        want = model.prefill(tokens, cache=plain)
        assert np.array_equal(model.prefill(tokens, cache=captured, capture=capture), want)
    for token in prompt[240:243]:
        want = model.decode(token, plain)
        assert np.array_equal(model.decode(token, captured, some), want)
    assert np.array_equal(model.prefill(prompt[243:256], cache=captured), model.prefill(prompt[243:256], cache=plain))
    plain.close()
    captured.close()


@pytest.mark.parametrize("name", FIXTURES)
def test_half_cache_rows(load_model, prompt, name):
    """A cache of halves: rows that sum to 1, near those of the float32 cache."""
    rows = []
    for kv_type in ("f16", "f32"):
        capture = AttentionCapture(queries=(-1, 3))
        load_model(name, kv_type=kv_type).prefill(prompt[:140], capture=capture)
        rows.append(np.stack(list(capture.pattern.values())))
    assert np.abs(rows[0].sum(-1, dtype=np.float64) - 1).max() <= 1e-5
    assert np.abs(rows[0] - rows[1]).max() <= 1e-2


# -- queries -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "queries", [None, (-1,), (0,), (31, 32), (199, 0, 64, 63, 31, 100), (-200, -1, 5, -3), np.arange(10, 190, 7)[::-1]]
)
def test_queries_across_chunks(chunked, cache, prompt, queries):
    tokens, positions = prompt[:200], list(range(200))
    capture = AttentionCapture(queries=queries)
    chunked.prefill(tokens, cache=cache, capture=capture)
    chosen = [int(q) % 200 for q in (range(200) if queries is None else queries)]
    every = reference_rows(chunked.path.stem, (tokens, positions))
    check_capture(capture, {layer: rows[:, chosen] for layer, rows in every.items()}, chosen)
    assert capture.query_positions.tolist() == chosen
    assert capture.key_positions.tolist() == positions and capture.token_ids.tolist() == tokens


def test_queries_of_a_later_call_with_gaps(chunked, cache, prompt):
    """Rows go over all cached keys; positions are those given, not cache slots."""
    positions = np.cumsum(np.arange(110) % 5 + 1).tolist()
    chunked.prefill(prompt[:70], positions[:70], cache)
    capture = AttentionCapture(queries=(39, 0, -2))
    chunked.prefill(prompt[70:110], positions[70:], cache, capture)
    every = reference_rows(chunked.path.stem, (prompt[:70], positions[:70]), (prompt[70:110], positions[70:]))
    check_capture(capture, {layer: rows[:, [39, 0, 38]] for layer, rows in every.items()}, [109, 70, 108])
    assert capture.query_positions.tolist() == [positions[i] for i in (109, 70, 108)]
    assert capture.key_positions.tolist() == positions and capture.token_ids.tolist() == prompt[:110]


def test_decode(chunked, cache, prompt):
    """One row for the token, whatever the queries of the capture say."""
    chunked.prefill(prompt[:40], cache=cache)
    for queries in ((-1,), None, (5, 9)):
        capture, count = AttentionCapture(queries=queries), len(cache)
        chunked.decode(prompt[count], cache, capture)
        every = reference_rows(chunked.path.stem, (prompt[: count + 1], range(count + 1)))
        check_capture(capture, {layer: rows[:, -1:] for layer, rows in every.items()}, [count])
        assert capture.query_positions.tolist() == [count]


def test_one_object_for_growing_caches_and_changed_settings(chunked, cache, prompt):
    """Filled anew each time, what was filled before stays the caller's; page borders are crossed."""
    capture, kept = AttentionCapture(), []
    for start, stop in ((0, 5), (5, 200), (200, 256), (256, 257), (257, 300)):
        chunked.prefill(prompt[start:stop], cache=cache, capture=capture)
        kept.append((stop, {layer: rows.copy() for layer, rows in capture.pattern.items()}, capture.pattern))
    every = reference_rows(chunked.path.stem, (prompt, range(300)))
    for stop, copied, pattern in kept:
        for layer, rows in pattern.items():
            assert np.array_equal(rows, copied[layer])
            assert rows.shape == (chunked.config.num_attention_heads, 1, stop)
            assert np.abs(rows[:, 0] - every[layer][:, stop - 1, :stop]).max() <= SOFTMAX_ROWS
    other = chunked.new_cache()
    capture.queries = (1, 0)
    chunked.prefill(prompt[:3], cache=other, capture=capture)
    check_capture(capture, {layer: rows[:, [1, 0], :3] for layer, rows in every.items()}, [1, 0])
    other.close()


def test_one_object_for_two_models(load_model, prompt):
    capture = AttentionCapture()
    for name in ("tiny-a-f32", "tiny-d-mixed", "tiny-a-f32"):
        model = load_model(name, kv_type="f32")
        model.prefill(prompt[:9], capture=capture)
        (expected,) = reference_rows(name, (prompt[:9], range(9))).values()
        (rows,) = capture.pattern.values()
        assert np.abs(rows - expected[:, -1:]).max() <= SOFTMAX_ROWS


def test_layers_and_attentions(built_in):
    """Indices of the model itself; None for delta-net layers, as for layers that were not asked for."""
    tokens = list(range(30, 60))
    every, last = AttentionCapture(queries=(3, -1)), AttentionCapture(layers=[7], queries=(3, -1))
    built_in.prefill(tokens, capture=every)
    built_in.prefill(tokens, capture=last)
    heads = built_in.config.num_attention_heads
    assert list(every.pattern) == [3, 7] and list(last.pattern) == [7]
    assert np.array_equal(every.pattern[7], last.pattern[7])
    shape = (1, heads, 2, 30)
    assert [a if a is None else a.shape for a in every.attentions] == [None, None, None, shape, None, None, None, shape]
    assert [a is None for a in last.attentions] == [True] * 7 + [False]
    assert np.array_equal(every.attentions[3][0], every.pattern[3])


# -- errors and memory -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [[0], [3, 4], [-1], [99]])
def test_bad_layers(built_in, layers):
    with pytest.raises(
        vkprefill.RequestError, match=rf"layers: {layers[-1]} has no attention rows, wanted some of 3, 7"
    ):
        built_in.prefill([1, 2], capture=AttentionCapture(layers=layers))
    with pytest.raises(vkprefill.RequestError, match="layers: none given"):
        built_in.prefill([1, 2], capture=AttentionCapture(layers=[]))


@pytest.mark.parametrize("queries", [(5,), (-6,), (0, 5), [], "0", [[0]], [0.5], [True], 0, (2, -3)])
def test_bad_queries(tiny, prompt, queries):
    before = dict(tiny.device.allocated)
    cache = tiny.new_cache()
    with pytest.raises(vkprefill.RequestError, match="queries: found"):
        tiny.prefill(prompt[:5], cache=cache, capture=AttentionCapture(queries=queries))
    assert len(cache) == 0 and dict(tiny.device.allocated) == before
    cache.close()


def test_too_large(tiny, prompt, monkeypatch):
    """Refused with the numbers before anything is allocated; the cache is as it was."""
    cache, every, before = tiny.new_cache(), AttentionCapture(queries=None), tiny.device.allocated.total()
    tiny.prefill(prompt[:10], cache=cache)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("allocated")

    heads = tiny.config.num_attention_heads
    many = [i % 256 for i in range(1400)]
    with monkeypatch.context() as patch:
        patch.setattr(type(tiny.device), "buffer", refuse)
        patch.setattr(type(tiny.device), "available_bytes", lambda *_: 1 << 20)
        what = rf"attention capture of 1400 queries, {heads} heads, 1410 keys in 1 layers: needs [\d,]+ MiB.* has 1 MiB"
        with pytest.raises(vkprefill.OutOfMemoryError, match=what):
            tiny.prefill(many, cache=cache, capture=every)
    with monkeypatch.context() as patch:
        patch.setattr(type(tiny.device), "buffer", refuse)
        info = tiny.device.info.__class__(**{**vars(tiny.device.info), "max_buffer_bytes": 16 << 20})
        patch.setattr(tiny.device, "info", info)
        with pytest.raises(vkprefill.RequestError, match=r"33 MiB for a layer, .* allows 16 MiB; take fewer queries"):
            tiny.prefill(many, cache=cache, capture=every)
    assert len(cache) == 10 and tiny.device.allocated.total() == before
    tiny.prefill(prompt[10:20], cache=cache, capture=every)
    assert every.pattern[3].shape == (heads, 10, 20)
    cache.close()


def test_memory_comes_back(tiny, prompt):
    """While a capture lives its buffers do, one set; when it is gone so are they, whoever else refers to the model."""
    before = dict(+tiny.device.allocated)
    bound = len(tiny.device.pipelines.bound)
    capture = AttentionCapture(queries=(-1, 0))
    for length in (5, 300, 20, 300):
        tiny.prefill(prompt[:length], capture=capture)
        size = tiny.device.allocated["capture"]
    assert 0 < size < 1 << 20 and tiny.device.allocated["capture"] == size
    rows = capture.pattern[3]
    copied = rows.copy()
    del capture
    assert dict(+tiny.device.allocated) == before and len(tiny.device.pipelines.bound) <= bound
    tiny.prefill(prompt[:30], capture=AttentionCapture())
    assert dict(+tiny.device.allocated) == before
    assert np.array_equal(rows, copied), "the rows are the caller's"


def test_capture_outlives_its_model(prompt):
    capture = AttentionCapture()
    with vkprefill.load(model_path("tiny-a-f32"), max_context=64) as model:
        model.prefill(prompt[:5], capture=capture)
    assert capture.pattern[3].shape == (4, 1, 5)
    del capture
    gc.collect()


def test_interrupted(tiny, prompt):
    """The cache goes back; the capture keeps what it had."""
    capture, cache = AttentionCapture(), tiny.new_cache()
    tiny.prefill(prompt[:20], cache=cache, capture=capture)
    rows = capture.pattern[3].copy()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tiny.prefill(prompt[20:250], cache=cache, capture=capture, progress=stop)
    assert len(cache) == 20 and np.array_equal(capture.pattern[3], rows)
    want = tiny.prefill(prompt[:60])
    got = tiny.prefill(prompt[20:60], cache=cache, capture=capture)
    assert np.abs(got - want).max() <= 1e-4 and capture.pattern[3].shape[-1] == 60
    cache.close()
