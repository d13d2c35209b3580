"""The map of layers: a capture's rows of the last token, in slices between which others may have the model."""

import numpy as np
import pytest

from vkprefill import AttentionCapture, OutOfMemoryError, RequestError
from vkprefill.explain.layer_map import layer_map, map_work
from vkprefill.vulkan import host_memory


@pytest.fixture(scope="module")
def one(load_model):
    return load_model("tiny-c-q4km", kv_type="f32", prefill_chunk=32, max_context=512)


@pytest.fixture(autouse=True)
def all_given_back(one):
    before = one.device.allocated.total(), len(one.runner.pool.free_pages)
    yield
    assert (one.device.allocated.total(), len(one.runner.pool.free_pages)) == before


def test_rows_of_a_capture_whatever_runs_between(one, prompt):
    ids = prompt[:70]
    capture, told = AttentionCapture(delta_layers=None), []
    one.prefill(ids, capture=capture)
    want = [capture.pattern[3] if layer == 3 else np.abs(capture.delta_pattern[layer]) for layer in range(4)]
    del capture
    work, slices = map_work(one, ids, lambda done, total: told.append((done, total))), 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            found = end.value
            break
        slices += 1
        one.prefill(prompt[100:140])  # another's
    assert slices == 3 and told[-1] == (70, 70)
    assert found.kinds == ("delta net",) * 3 + ("attention",) and found.memory_bytes > 0
    np.testing.assert_array_equal(found.weights, np.stack([rows[:, 0].mean(axis=0) for rows in want]))


def test_refused_before_anything_runs(one, prompt, monkeypatch):
    with pytest.raises(RequestError, match="0 cached and 600 new tokens, the cache holds 512"):
        layer_map(one, prompt[:300] * 2)
    monkeypatch.setattr(host_memory, "free_ram_bytes", lambda: 0)
    with pytest.raises(OutOfMemoryError, match=r"delta-net rows of 1 queries, .* 300 keys in 3 layers: needs \d+ MiB"):
        next(map_work(one, prompt[:300]))


def test_left_in_the_middle(one, prompt):
    work = map_work(one, prompt[:70])
    next(work)
    work.close()
