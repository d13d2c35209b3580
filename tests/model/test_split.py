"""A prompt in two parts: layers up to one read all of it, the others what is kept. Against float64 numpy, and bits."""

import numpy as np
import pytest

import vkprefill
from tests.model.test_fixtures import cached_rows, states
from tests.reference import mtp
from tests.reference.fixtures import load_case, model_path, rms
from tests.reference.forward import ReferenceModel
from tests.reference.split import forward_split
from vkprefill.engine import row_store
from vkprefill.engine.cache import Cache
from vkprefill.engine.model import Model

EXACT = 1e-4  # of the RMS: float32 sums against float64. Measured: 2e-5
SPLITS = [("tiny-a-f32", 2), ("tiny-b-f32", 0), ("tiny-c-q4km", 1), ("mtp-b-q4km", 1), ("mtp-c-mixed", 0)]


def read(model: Model, ids, positions, cache: Cache, split: int, kept, **more) -> np.ndarray:
    """Logits after ids[kept]."""
    kept = np.asarray(kept)
    model.runner.split.read(ids, positions, cache, split, **more)
    return model.prefill(np.asarray(ids)[kept], np.asarray(positions)[kept], cache)


def every(count: int, step: int) -> np.ndarray:
    """Stretches of 8 in each `step` tokens, and the last."""
    return np.array([t for t in range(count) if t % step < 8 or t == count - 1])


def assert_close(got: np.ndarray, want: np.ndarray, label: str) -> None:
    assert got.shape == want.shape, label
    error = np.abs(got - want).max() / rms(want)
    assert error <= EXACT, f"{label}: {error:.2e} of the RMS"


def layers_of(model: Model, cache: Cache) -> dict[int, tuple[np.ndarray, ...]]:
    """Layer -> keys and values of its own length, or states: copies, of the cache that ran last."""
    found = {}
    model.runner.pool.settle()
    for layer in model.config.attention_layers:
        found[layer] = tuple(x[: cache.length_of(layer)].copy() for x in cached_rows(model, cache, layer))
    for layer in model.config.linear_layers:
        found[layer] = tuple(x.copy() for x in states(model, cache, layer))
    return found


@pytest.mark.parametrize(("name", "split"), SPLITS)
@pytest.mark.parametrize("case_name", ["p200", "gaps"])
def test_split_model_against_float64(load_model, name, split, case_name):
    """A prompt, two tokens decoded, a further prompt that is read in two parts, one that all layers run, a token."""
    model, reference = load_model(name, kv_type="f32", prefill_chunk=48), ReferenceModel(model_path(name))
    case = load_case(name, case_name)
    ids, positions = case.token_ids.tolist(), case.positions.tolist()
    count = len(ids)
    cuts = [0, count // 2, count // 2 + 2, count - 12, count - 1, count]
    cache, state = model.new_cache(), reference.new_state()
    for i, (start, end) in enumerate(zip(cuts, cuts[1:], strict=False)):
        part, where = ids[start:end], positions[start:end]
        if i in (0, 2):
            kept = every(end - start, 20)
            logits = read(model, part, where, cache, split, kept)
            out = forward_split(reference, part, where, kept, split, state)
        else:
            out = forward_split(reference, part, where, range(len(part)), split, state)
            if where[0] == cache.next_position and len(part) < 3:
                for token in part:
                    logits = model.decode(token, cache)
            else:
                logits = model.prefill(part, where, cache)
        assert_close(logits, out["result_output"][-1], f"logits of part {i}")
    assert cache.positions == positions and len(cache.late_positions) < count
    for layer, found in layers_of(model, cache).items():
        if layer in model.config.attention_layers:
            want = state[layer].keys, state[layer].values
        else:
            want = state[layer].conv.T, state[layer].memory
        for x, y in zip(found, want, strict=True):
            assert_close(x, y, f"layer {layer}")
    cache.close()


@pytest.mark.parametrize("name", ["mtp-b-q4km", "tiny-c-q4km"])
@pytest.mark.parametrize("kv_type", ["f16", "f32"])
def test_all_kept_is_dense_bit_for_bit(load_model, prompt, name, kv_type):
    """And so is what is decoded afterwards."""
    model, found = load_model(name, kv_type=kv_type, prefill_chunk=48), []
    for split in (None, 1):
        cache = model.new_cache()
        if split is None:
            logits = [model.prefill(prompt[:200], cache=cache)]
        else:
            logits = [read(model, prompt[:200], range(200), cache, split, range(200))]
        assert cache.split is None
        logits += [model.decode(token, cache) for token in prompt[200:203]]
        found.append((logits, layers_of(model, cache)))
        cache.close()
    (dense, dense_layers), (split, split_layers) = found
    np.testing.assert_array_equal(dense, split)
    for layer, want in dense_layers.items():
        for x, y in zip(split_layers[layer], want, strict=True):
            np.testing.assert_array_equal(x, y, f"layer {layer}")


@pytest.mark.parametrize("step", [10, 50])
@pytest.mark.parametrize(("name", "split"), [("mtp-b-q4km", 1), ("tiny-c-q4km", 2)])
def test_early_layers_are_dense_bit_for_bit(load_model, prompt, name, split, step):
    """Over two turns with tokens decoded between them, whatever is kept."""
    model, found = load_model(name, kv_type="f32", prefill_chunk=48), []
    for sparse in (False, True):
        cache = model.new_cache()
        for start, end in ((0, 150), (153, 280)):
            ids, where = prompt[start:end], range(start, end)
            if sparse:
                read(model, ids, where, cache, split, every(end - start, step))
            else:
                model.prefill(ids, cache=cache)
            for token in prompt[end : end + 3]:
                model.decode(token, cache)
        found.append({layer: x for layer, x in layers_of(model, cache).items() if layer <= split})
        cache.close()
    for layer, want in found[0].items():
        for x, y in zip(found[1][layer], want, strict=True):
            np.testing.assert_array_equal(x, y, f"layer {layer}")


@pytest.mark.parametrize("on_host", [False, True])
def test_snapshots_inside_a_prompt(load_model, prompt, on_host):
    """Taken while the prompt is read ahead, with another cache's runs between: each goes on as if the prompt had ended
    there, and with the rest of it to the same bits.
    """
    model, ends = load_model("mtp-b-q4km", kv_type="f32", max_context=2048), (60, 130, 200)
    kept = np.union1d(every(200, 20), np.array(ends) - 1)
    cache, other, fresh, done, snapshots = model.new_cache(), model.new_cache(), model.new_cache(), 0, []
    model.runner.split.read(prompt[:200], range(200), cache, 1, marks=ends)
    for end in ends:
        part = kept[(kept >= done) & (kept < end)]
        last = model.prefill(np.asarray(prompt)[part], part, cache)
        snapshots.append(cache.snapshot(on_host=on_host, before=end))
        model.prefill(prompt[:3], cache=other)
        done = end
    for snapshot, end in zip(reversed(snapshots), reversed(ends), strict=True):
        cache.restore(snapshot)
        assert (len(cache), cache.next_position, cache.ahead) == (end, end, None)
        assert cache.late_positions == kept[kept < end].tolist()
        fresh.reset()
        read(model, prompt[:end], range(end), fresh, 1, kept[kept < end])
        np.testing.assert_array_equal(model.decode(7, cache), model.decode(7, fresh))
        other.start_from(cache, snapshot)
        np.testing.assert_array_equal(model.decode(8, other), [cache.restore(snapshot), model.decode(8, cache)][1])
        cache.restore(snapshot)
        if end < 200:
            rest = kept[kept >= end] - end
            np.testing.assert_array_equal(read(model, prompt[end:200], range(end, 200), cache, 1, rest), last)
            cache.restore(snapshot)
    for each in (cache, other, fresh):
        each.close()


def test_rows_in_several_parts(load_model, prompt, monkeypatch):
    """As where a device grants no buffer for all of them."""
    model = load_model("tiny-c-q4km", kv_type="f32")
    want = None
    for most in (row_store.MAX_BYTES, 37 * 4 * model.config.hidden_size):
        monkeypatch.setattr(row_store, "MAX_BYTES", most)
        model.runner.split.close()
        cache = model.new_cache()
        got = read(model, prompt, range(300), cache, 1, every(300, 20))
        want = got if want is None else want
        cache.close()
    assert len(model.runner.split._store._parts) > 8
    np.testing.assert_array_equal(got, want)
    model.runner.split.close()


def test_the_block_follows_the_late_layers(load_model, prompt):
    """Its keys, its values and the row that waits are those of the kept tokens, each paired with the one before it."""
    name, kept = "mtp-b-q4km", every(200, 20)
    model, reference = load_model(name, kv_type="f32"), ReferenceModel(model_path(name))
    cache, state, drafter = model.new_cache(), reference.new_state(), mtp.DraftState(reference)
    read(model, prompt[:200], range(200), cache, 1, kept)
    out = forward_split(reference, prompt[:200], range(200), kept, 1, state)
    drafter.feed(np.asarray(prompt)[kept], kept, out)
    keys, values = (x[: len(kept)] for x in cached_rows(model, cache, model.runner.pool.mtp_layer))
    assert_close(keys, drafter.kv.keys, "keys of the block")
    assert_close(values, drafter.kv.values, "values of the block")
    assert_close(model.runner.pool.waiting_row.read(), drafter.waiting, "row that waits")
    plain, drafted = [], []
    snapshot, token = cache.snapshot(), 5
    for _ in range(12):
        token = int(model.decode(token, cache).argmax())
        plain.append(token)
    cache.restore(snapshot)
    token = 5
    while len(drafted) < 12:
        drafts = model.drafter().draft(token, cache, 3)
        assert drafts
        rows = model.run_rows([token, *drafts], cache)
        for guess in (*drafts, None):
            token = int(rows.take()[1].argmax())
            drafted.append(token)
            if token != guess:
                break
    assert drafted[:12] == plain
    cache.close()


def test_what_cannot_be_done_with_it(load_model, prompt):
    model = load_model("mtp-b-q4km", kv_type="f32")
    cache, other = model.new_cache(), model.new_cache()
    with pytest.raises(vkprefill.RequestError, match="split: 3, wanted 0 to 2"):
        model.runner.split.read(prompt, None, cache, 3)
    model.runner.split.read(prompt[:50], None, cache, 1)
    for wrong in (
        lambda: model.decode(1, cache),
        lambda: model.runner.split.read(prompt[:5], None, cache, 1),
    ):
        with pytest.raises(vkprefill.RequestError, match="only the layers up to 1 have read its last 50 tokens"):
            wrong()
    for ids, where in (([prompt[3] ^ 1], [3]), ([prompt[0]], [50])):
        with pytest.raises(vkprefill.RequestError, match="is not what was read there"):
            model.prefill(ids, where, cache)
    with pytest.raises(vkprefill.RequestError, match="nothing was kept for position 20"):
        cache.snapshot(before=20)
    with pytest.raises(vkprefill.RequestError, match="attention rows can be taken of others only"):
        model.prefill(prompt[:1], [0], cache, capture=vkprefill.AttentionCapture())
    model.runner.split.read(prompt[:50], None, other, 1)
    with pytest.raises(vkprefill.RequestError, match="another prompt was read since"):
        model.prefill(prompt[:1], [0], cache)
    kept = np.array([0, 1, 49])
    model.prefill(np.asarray(prompt)[kept], kept, other)
    with pytest.raises(vkprefill.RequestError, match="layers after 1 have only 3 of its 50 tokens"):
        model.decode(1, other, capture=vkprefill.AttentionCapture())
    with pytest.raises(vkprefill.RequestError, match="layers after 1 have some of its tokens only"):
        other.copy_rows([0])
    with pytest.raises(vkprefill.RequestError, match="layers after 1 have some of its tokens only, wanted after 0"):
        model.runner.split.read(prompt[:5], None, other, 0)
    model.decode(1, other)
    cache.close()
    other.close()
