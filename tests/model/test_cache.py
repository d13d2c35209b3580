"""Caches: reset, snapshots, several at once, running out of room, and what an interrupted run leaves behind."""

import gc
import resource
from collections import Counter

import numpy as np
import pytest

import vkprefill
from tests.reference.fixtures import model_path
from vkprefill.engine.cache import Cache
from vkprefill.engine.model import Model
from vkprefill.engine.sizes import PAGE
from vkprefill.engine.step_input import Best

NEXT = (5, 77, 130)  # tokens decoded to compare what follows


def continuation(model: Model, cache: Cache) -> np.ndarray:
    """Logits of a few tokens more, and of a prefill after them."""
    rows = [model.decode(token_id, cache) for token_id in NEXT]
    return np.stack([*rows, model.prefill(NEXT, cache=cache)])


def fresh_continuation(model: Model, token_ids: list[int]) -> np.ndarray:
    cache = model.new_cache()
    model.extend(token_ids, cache)
    rows = continuation(model, cache)
    cache.close()
    return rows


@pytest.fixture
def model(tiny):
    """The shared model; the test must leave no memory in use that was not before."""
    before, free = Counter(tiny.device.allocated), len(tiny.runner.pool.free_pages)
    yield tiny
    gc.collect()
    assert +Counter(tiny.device.allocated) == +before
    assert len(tiny.runner.pool.free_pages) == free


@pytest.fixture
def cache(model):
    made = model.new_cache()
    yield made
    made.close()


def test_reset_forgets(model, cache, prompt):
    want = fresh_continuation(model, prompt[:50])
    model.extend(prompt[50:], cache)
    cache.reset()
    assert (len(cache), cache.token_ids, cache.positions, cache.next_position, cache.pages) == (0, [], [], 0, [])
    model.extend(prompt[:50], cache)
    assert np.array_equal(continuation(model, cache), want)


def test_restored_snapshot_continues_bit_for_bit(model, cache, prompt):
    model.extend(prompt[:50], cache)
    snapshot = cache.snapshot()
    want = continuation(model, cache)
    model.extend(prompt[50:], cache)
    for _ in range(2):
        cache.restore(snapshot)
        assert (cache.token_ids, cache.next_position, len(cache.pages)) == (prompt[:50], 50, 1)
        assert np.array_equal(continuation(model, cache), want)
    assert np.array_equal(want, fresh_continuation(model, prompt[:50]))


def test_snapshot_of_an_empty_cache(model, cache, prompt):
    snapshot = cache.snapshot()
    want = continuation(model, cache)
    cache.restore(snapshot)
    assert len(cache) == 0 and cache.pages == []
    assert np.array_equal(continuation(model, cache), want)


def test_interleaved_caches_equal_separate_ones(model, prompt):
    parts = [prompt[:60], prompt[60:100], prompt[100:103]]
    caches = [model.new_cache() for _ in parts]
    wanted = [fresh_continuation(model, part + part[::-1]) for part in parts]
    for step in (1, -1):
        for cache, part in zip(caches, parts, strict=True):
            model.extend(part[::step], cache)
    got: list[list[np.ndarray]] = [[] for _ in parts]
    for token_id in NEXT:
        for rows, cache in zip(got, caches, strict=True):
            rows.append(model.decode(token_id, cache))
    for rows, cache, want in zip(got, caches, wanted, strict=True):
        assert np.array_equal(np.stack([*rows, model.prefill(NEXT, cache=cache)]), want)
        cache.close()


def test_snapshots_with_another_cache_in_between(model, cache, prompt):
    model.extend(prompt[:50], cache)
    snapshot, other = cache.snapshot(), model.new_cache()
    want = continuation(model, cache)
    model.extend(prompt[100:200], other)
    other_snapshot = other.snapshot()
    other_want = continuation(model, other)
    cache.restore(snapshot)
    assert np.array_equal(continuation(model, cache), want)
    other.restore(other_snapshot)
    assert np.array_equal(continuation(model, other), other_want)
    with pytest.raises(vkprefill.RequestError, match="snapshot: not one of this cache"):
        cache.restore(other_snapshot)
    other.close()


def test_a_call_without_cache_leaves_others_alone(model, cache, prompt):
    want = fresh_continuation(model, prompt[:50])
    model.extend(prompt[:50], cache)
    model.prefill(prompt)
    model.logits(prompt[:40])
    assert np.array_equal(continuation(model, cache), want)


@pytest.mark.parametrize("how", ["older snapshot", "reset", "freed", "closed"])
def test_stale_snapshots_are_refused(model, cache, prompt, how):
    model.extend(prompt[:20], cache)
    older = cache.snapshot()
    model.extend(prompt[20:40], cache)
    snapshot = cache.snapshot()
    if how == "older snapshot":
        cache.restore(older)
    elif how == "reset":
        cache.reset()
    elif how == "freed":
        snapshot.free()
        snapshot.free()
    else:
        cache.close()
    with pytest.raises(vkprefill.RequestError, match="^snapshot: "):
        cache.restore(snapshot)
    assert model.device.allocated["snapshots"] == (0 if how in ("reset", "closed") else older.state.num_bytes)
    if how != "closed":
        model.extend(prompt[:5], cache)


def test_closed_cache_is_refused(model, cache, prompt):
    cache.close()
    cache.close()
    for use in (lambda: model.prefill(prompt[:2], cache=cache), lambda: model.decode(1, cache), cache.snapshot):
        with pytest.raises(vkprefill.RequestError, match="cache: closed"):
            use()


def test_cache_of_another_model_is_refused(load_model, model, prompt):
    other = load_model("tiny-c-q4km", kv_type="f16").new_cache()
    for use in (model.prefill, model.extend):
        with pytest.raises(vkprefill.RequestError, match="new_cache"):
            use(prompt, cache=other)
    with pytest.raises(vkprefill.RequestError, match="new_cache"):
        model.decode(1, other)
    with pytest.raises(vkprefill.RequestError, match="new_cache"):
        model.decode(1, None)
    other.close()


@pytest.fixture
def small(load_model):
    """A pool of two pages."""
    return load_model("tiny-c-q4km", kv_type="f32")


def test_pages_come_and_go(small, prompt):
    model, cache = small, small.new_cache()
    assert model.max_context == 2 * PAGE
    model.extend(prompt[:PAGE], cache)
    assert cache.pages == [0]
    snapshot = cache.snapshot()
    model.decode(1, cache)
    assert cache.pages == [0, 1] and model.runner.pool.free_pages == []
    cache.restore(snapshot)
    assert cache.pages == [0] and model.runner.pool.free_pages == [1]
    del snapshot
    cache.reset()
    assert model.runner.pool.free_pages == [0, 1]


def test_pool_used_up(small, prompt):
    model, cache = small, small.new_cache()
    want = fresh_continuation(model, prompt[:20])
    model.extend(prompt[:20], cache)
    other = model.new_cache()
    with pytest.raises(
        vkprefill.OutOfMemoryError, match="512 more slots wanted, 256 of 512 are free; close other caches"
    ):
        model.prefill(prompt, cache=other)
    assert len(other) == 0 and np.array_equal(continuation(model, cache), want)
    cache.close()
    assert model.prefill(prompt, cache=other) is not None
    other.close()


def test_dropped_cache_gives_its_pages_back(small, prompt):
    model = small
    cache = model.new_cache()
    model.prefill(prompt, cache=cache)
    del cache
    gc.collect()
    assert model.runner.pool.free_pages == [0, 1]


def test_context_overflow(model, prompt):
    cache = model.new_cache(max_context=30)
    want = fresh_continuation(model, prompt[:20])
    model.extend(prompt[:20], cache)
    with pytest.raises(vkprefill.RequestError, match="20 cached and 11 new tokens, the cache holds 30"):
        model.prefill(prompt[:11], cache=cache)
    assert np.array_equal(continuation(model, cache), want)
    model.extend(prompt[:4], cache)
    with pytest.raises(vkprefill.RequestError, match="30 cached and 1 new tokens"):
        model.decode(1, cache)
    cache.close()
    for wrong in (0, -1, 1537):
        with pytest.raises(vkprefill.RequestError, match="max_context"):
            model.new_cache(wrong)


@pytest.mark.parametrize("start", (0, 20))
@pytest.mark.parametrize("error", (KeyboardInterrupt, ValueError))
def test_interrupted_prefill_leaves_no_trace(model, cache, prompt, start, error):
    if start:
        model.extend(prompt[:start], cache)
    want = continuation(model, cache)
    cache.reset()
    if start:
        model.extend(prompt[:start], cache)

    def stop(done: int, total: int) -> None:
        if done > 150:
            raise error

    with pytest.raises(error):
        model.prefill(prompt, cache=cache, progress=stop)
    assert (len(cache), cache.next_position, len(cache.pages)) == (start, start, 1 if start else 0)
    assert np.array_equal(continuation(model, cache), want)


def test_interrupt_after_the_last_layer_leaves_no_trace(model, cache, prompt, monkeypatch):
    want = fresh_continuation(model, prompt[:20])
    model.extend(prompt[:20], cache)

    def stop() -> None:
        raise KeyboardInterrupt

    for call in (
        lambda: model.prefill(prompt[20:30], cache=cache),
        lambda: model.prefill_candidates(prompt[:9], cache, Best(1)),
    ):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(model.runner.head_program, "run", stop)
            call()
    assert np.array_equal(continuation(model, cache), want)


def test_second_interrupt_while_going_back(model, cache, prompt, monkeypatch):
    """Then the state is lost, and the cache says so instead of going on with a wrong one."""
    model.extend(prompt[:20], cache)
    snapshot = cache.snapshot()

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(model.runner.pool, "load_state", stop)
        model.prefill(prompt[20:], cache=cache, progress=stop)
    with pytest.raises(vkprefill.RequestError, match="interrupted; reset it or restore"):
        model.decode(1, cache)
    cache.restore(snapshot)
    assert np.array_equal(continuation(model, cache), fresh_continuation(model, prompt[:20]))


def test_interrupt_while_a_state_is_swapped_in(model, cache, prompt, monkeypatch):
    want = fresh_continuation(model, prompt[:20])
    model.extend(prompt[:20], cache)
    other = model.new_cache()
    model.extend(prompt[:30], other)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(model.runner.pool, "load_state", stop)
        model.decode(1, cache)
    assert np.array_equal(continuation(model, cache), want)
    assert np.array_equal(continuation(model, other), fresh_continuation(model, prompt[:30]))
    other.close()


@pytest.mark.parametrize("way_out", ("reset", "restore"))
def test_a_run_cut_off_in_its_middle_breaks_the_cache(model, cache, prompt, monkeypatch, way_out):
    """Between submissions, when some layers may have taken in the token before and others not."""
    model.extend(prompt[:20], cache)
    snapshot = cache.snapshot()
    model.decode(2, cache)
    program = model.runner.decode_program

    def stop() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(program, "run", stop)
        patch.setattr(type(program), "num_submissions", 2)
        model.decode(1, cache)
    for use in (lambda: model.decode(1, cache), lambda: model.prefill([1], cache=cache), cache.snapshot):
        with pytest.raises(vkprefill.RequestError, match="interrupted; reset it or restore a snapshot"):
            use()
    if way_out == "reset":
        cache.reset()
        model.extend(prompt[:20], cache)
    else:
        cache.restore(snapshot)
    assert np.array_equal(continuation(model, cache), fresh_continuation(model, prompt[:20]))


def test_many_caches_leak_nothing(model, prompt):
    def cycle() -> None:
        first, second = model.new_cache(), model.new_cache()
        model.extend(prompt[:10], first)
        snapshot = first.snapshot()
        model.extend(prompt[:10], second)
        model.decode(1, first)
        first.restore(snapshot)
        first.close()
        second.close()

    for _ in range(5):
        cycle()
    allocated, peak = Counter(model.device.allocated), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(50):
        cycle()
    assert Counter(model.device.allocated) == allocated
    # 50 states of 210 KiB would be 10 MiB, and one cycle makes four copies
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 8 << 10


def test_closed_model_says_so(prompt):
    model = vkprefill.load(model_path("tiny-a-f32"), max_context=512)
    cache = model.new_cache()
    model.extend(prompt[:10], cache)
    snapshot = cache.snapshot()
    model.close()
    model.close()
    assert model.device.allocated.total() == 0
    for use in (
        lambda: model.prefill(prompt[:5]),
        lambda: model.decode(1, cache),
        lambda: model.logits([1]),
        lambda: model.decode_candidates(1, cache, Best(1)),
        cache.snapshot,
        lambda: cache.restore(snapshot),
    ):
        with pytest.raises(vkprefill.DeviceError, match="closed; load the model again"):
            use()
    snapshot.free()
    cache.close()
