"""Ways to the same result: chunk sizes, calls, decode for prefill, repetition, candidates chosen on the device."""

import numpy as np
import pytest

import vkprefill
from tests.reference.fixtures import model_path, rms
from tests.shaders.run_kernel import PROFILES
from vkprefill.engine import cpu_loads
from vkprefill.engine.cpu_loads import LoadTimes
from vkprefill.engine.sizes import MAX_CANDIDATES
from vkprefill.engine.step_input import Best

SAME = 1e-4  # of the RMS of the logits: sums in another order. Measured: 1e-5


def assert_same(got: np.ndarray, want: np.ndarray, label: str = "") -> None:
    error = np.abs(got - want).max() / rms(want)
    assert error <= SAME, f"{label}: {error:.2e} of the RMS"


@pytest.fixture(scope="module", params=["tiny-b-f32", "tiny-c-q4km", "tiny-d-mixed"])
def model(request, load_model):
    return load_model(request.param, kv_type="f32")


@pytest.mark.parametrize(("chunk", "count"), ((1, 20), (7, 50), (64, 201), (65, 201), (200, 201)))
def test_chunk_size_does_not_matter(tiny, prompt, chunk, count):
    tokens, cut = prompt[:count], (1, 20, count)
    want = tiny.logits(tokens)
    with vkprefill.load(model_path("tiny-c-q4km"), max_context=512, kv_type="f32", prefill_chunk=chunk) as other:
        assert other.prefill_chunk == chunk
        assert_same(other.logits(tokens), want, "logits of all")
        for length in cut:
            assert_same(other.prefill(tokens[:length]), want[length - 1], f"prefill of {length}")


@pytest.mark.parametrize("name", ["tiny-c-q4km", pytest.param("tiny-d-mixed", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("profile", ["amd", "nvidia", "intel", "unknown"])
def test_profile_does_not_matter(load_model, prompt, monkeypatch, profile, name):
    """The kernels and tiles that other devices use: all forms of the matmul."""
    want = load_model(name, kv_type="f32").logits(prompt[:201])
    monkeypatch.setattr("vkprefill.vulkan.device.profile_for", lambda info: PROFILES[profile])
    with vkprefill.load(model_path(name), max_context=512, kv_type="f32", prefill_chunk=135) as other:
        assert_same(other.logits(prompt[:201]), want)


@pytest.mark.parametrize("times", [LoadTimes(1.0, 1.0), LoadTimes(2.0, 1.0)], ids=["narrow", "wide"])
def test_either_width_of_loads_gives_the_same_bits(load_model, prompt, monkeypatch, tmp_path, times):
    """Of a prompt and of what is decoded after it, whatever the first load of this run measured."""
    model = load_model("tiny-c-q4km", kv_type="f32")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cpu_loads, "_measure", lambda device: times)
    with vkprefill.load(model.path, max_context=512, kv_type="f32") as other:
        results = []
        for each in (model, other):
            cache = each.new_cache()
            results.append((each.prefill(prompt[:75], cache=cache), each.decode(3, cache)))
            cache.close()
    np.testing.assert_array_equal(*results)


def test_decodes_equal_prefill(model, prompt):
    tokens = prompt[:70]
    want = model.logits(tokens)
    cache = model.new_cache()
    for t, token_id in enumerate(tokens):
        assert_same(model.decode(token_id, cache), want[t], f"token {t}")
    assert (cache.token_ids, cache.positions, cache.next_position) == (tokens, list(range(70)), 70)
    cache.close()


def test_rows_of_logits_equal_prefill_at_each_length(model, prompt):
    rows = model.logits(prompt[:140])
    for length in (1, 2, 31, 32, 33, 64, 128, 129, 140):
        assert_same(rows[length - 1], model.prefill(prompt[:length]), f"length {length}")


def test_the_same_call_gives_the_same_bits(model, prompt):
    first = model.prefill(prompt)
    assert first.dtype == np.float32 and first.shape == (model.config.vocab_size,)
    model.prefill(prompt[100:])  # something else in between: the second request must not see it
    assert np.array_equal(model.prefill(prompt), first)
    assert np.array_equal(model.logits(prompt[:50]), model.logits(prompt[:50]))


def test_decode_gives_the_same_bits(model, prompt):
    runs = []
    for _ in range(2):
        cache = model.new_cache()
        model.extend(prompt[:40], cache)
        runs.append([model.decode(token_id, cache) for token_id in prompt[40:50]])
        cache.close()
    assert np.array_equal(*runs)


def test_continuation_in_several_calls_with_gaps(model, prompt):
    tokens = prompt[:100]
    positions = np.cumsum(np.arange(100) % 7 + 1)
    want = model.logits(tokens, positions)
    cache, start = model.new_cache(), 0
    for count in (1, 2, 33, 64):
        part = slice(start, start + count)
        got = model.prefill(tokens[part], positions[part], cache)
        start += count
        assert_same(got, want[start - 1], f"after {start}")
    assert cache.positions == positions.tolist() and cache.next_position == positions[-1] + 1
    assert not np.allclose(want[-1], model.prefill(tokens), atol=1e-2), "positions matter"
    cache.close()


def test_without_positions_a_call_goes_on_where_the_cache_ended(model, prompt):
    cache = model.new_cache()
    model.prefill(prompt[:10], np.arange(10) * 5, cache)
    model.prefill(prompt[10:12], cache=cache)
    model.decode(prompt[12], cache)
    assert cache.positions[-4:] == [45, 46, 47, 48]
    want = model.prefill(prompt[:13], cache.positions)
    cache.reset()
    model.prefill(prompt[:10], np.arange(10) * 5, cache)
    model.extend(prompt[10:12], cache)
    assert_same(model.decode(prompt[12], cache), want)
    cache.close()


@pytest.mark.parametrize("count", (1, 20, MAX_CANDIDATES))
def test_candidates_equal_numpy(model, prompt, count):
    caches = model.new_cache(), model.new_cache()
    full = model.prefill(prompt[:30], cache=caches[0])
    got = model.prefill_candidates(prompt[:30], caches[1], Best(count))
    for _ in range(3):
        order = np.lexsort((np.arange(len(full)), -full))[:count]
        assert got[0].tolist() == order.tolist()
        assert np.array_equal(got[1], full[order])
        token_id = int(got[0][0])
        full = model.decode(token_id, caches[0])
        got = model.decode_candidates(token_id, caches[1], Best(count))
    for cache in caches:
        cache.close()


def test_candidates_with_a_penalty(model, prompt):
    cache, penalty = model.new_cache(), 1.5
    full = model.prefill(prompt[:30])
    seen = np.argsort(-full)[:3].tolist() + [0, 31, 32, model.config.vocab_size - 1]
    ids, logits = model.prefill_candidates(prompt[:30], cache, Best(20, penalty, seen))
    full[seen] -= np.float32(penalty)
    order = np.lexsort((np.arange(len(full)), -full))[:20]
    assert ids.tolist() == order.tolist() and np.array_equal(logits, full[order])
    cache.reset()
    _, best = model.prefill_candidates(prompt[:30], cache, Best(1, penalty))
    assert best == model.prefill(prompt[:30]).max()
    cache.close()


def test_progress_is_reported(tiny, prompt):
    calls = []
    tiny.prefill(prompt, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (300, 300) and calls == sorted(calls) and {total for _, total in calls} == {300}


@pytest.mark.parametrize("name", ["tiny-b-f32", "tiny-c-q4km", "built-in"])
@pytest.mark.parametrize("place", [2, 3, 17, 64, 65, 127, 129, 255, 257, 298])
def test_where_a_prompt_is_cut_changes_no_bit(load_model, prompt, name, place):
    """A cached beginning of any length, so that an answer that goes on from it is the one of a fresh run."""
    model = load_model(name, max_context=4096 if name == "built-in" else 512)
    want, cache = model.prefill(prompt), model.new_cache()
    model.extend(prompt[:place], cache)
    assert np.array_equal(model.prefill(prompt[place:], cache=cache), want)
    cache.close()
