"""The multi-token-prediction block on the device against llama.cpp's arrays and the numpy reference: its keys and
values over prompts, the row that waits between calls, and what of the model stays as it is without it.
"""

from dataclasses import asdict

import numpy as np
import pytest

import vkprefill
from tests.model.test_fixtures import assert_close, cached_rows, run_case
from tests.reference import mtp
from tests.reference.fixtures import (
    CASES,
    INTERMEDIATE,
    LOGITS,
    MTP_FIXTURES,
    engine_limit,
    load_case,
    model_path,
    rms,
)
from tests.reference.forward import ReferenceModel
from tools.make_model import companion_of
from vkprefill.engine.model import Model


def block_of(model: Model, cache) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys and values [S, G, Dh] of the block, and the row [D] that waits: of the cache that ran last."""
    model.runner.pool.settle()
    return *cached_rows(model, cache, model.runner.pool.mtp_layer), model.runner.pool.waiting_row.read()


def reference_block(name: str, case) -> mtp.DraftState:
    reference = ReferenceModel(model_path(name))
    state, drafter = reference.new_state(), mtp.DraftState(reference)
    for token_ids, positions in case.parts():
        drafter.feed(token_ids, positions, reference.forward(token_ids, positions, state))
    return drafter


def assert_block(model: Model, cache, want: mtp.DraftState) -> None:
    keys, values, waiting = block_of(model, cache)
    assert_close(keys, want.kv.keys, INTERMEDIATE * rms(want.kv.keys), "keys of the block")
    assert_close(values, want.kv.values, INTERMEDIATE * rms(want.kv.values), "values of the block")
    assert_close(waiting, want.waiting, INTERMEDIATE * rms(want.waiting), "row that waits")


@pytest.mark.parametrize("case_name", CASES)
@pytest.mark.parametrize("name", MTP_FIXTURES)
def test_trunk_and_block_over_a_prompt(load_model, name, case_name):
    model, case = load_model(name, kv_type="f32"), load_case(name, case_name)
    cache = model.new_cache()
    logits = run_case(model, case, cache)
    assert_close(logits, case.arrays["result_output"][-1], engine_limit(case, "result_output"), "logits")
    assert_block(model, cache, reference_block(name, case))
    cache.close()


@pytest.mark.parametrize("name", MTP_FIXTURES)
def test_values_of_llama_cpp(load_model, name):
    model, case = load_model(name, kv_type="f32"), load_case(name, "p7")
    cache = model.new_cache()
    run_case(model, case, cache)
    stored = case.block[f"mtp_Vcur-{model.runner.pool.mtp_layer}"]
    values = block_of(model, cache)[1].reshape(stored.shape)
    assert_close(values, stored, INTERMEDIATE * rms(stored), "values of the block")
    cache.close()


@pytest.mark.parametrize("chunk", [1, 33])
def test_chunks_and_decoding_fill_it_alike(load_model, chunk):
    """Whole prompts, chunks of them, tokens one at a time."""
    name = "mtp-b-q4km"
    case = load_case(name, "p65")
    want = reference_block(name, case)
    model = load_model(name, kv_type="f32", prefill_chunk=chunk)
    cache = model.new_cache()
    model.extend(case.token_ids, cache)
    assert_block(model, cache, want)
    cache.reset()
    model.extend(case.token_ids[:40], cache)
    for token_id in case.token_ids[40:]:
        model.decode(int(token_id), cache)
    assert_block(model, cache, want)
    cache.close()


@pytest.mark.parametrize("name", MTP_FIXTURES)
def test_the_same_bits_without_it(load_model, name):
    """Of the trunk; what it takes of memory is in the bill under its own name."""
    case = load_case(name, "p200")
    with_block, without = (load_model(name, kv_type="f32", mtp=mtp) for mtp in ("auto", None))
    assert with_block.has_mtp and not without.has_mtp
    rows = []
    for model in (with_block, without):
        cache = model.new_cache()
        logits = [run_case(model, case, cache)] + [model.decode(token_id, cache) for token_id in (3, 77, 9)]
        size = without.runner.pool.state.shape[0]
        rows.append((np.stack(logits), model.runner.pool.download_state()[:size], model.logits(case.token_ids[:50])))
        cache.close()
    for one, other in zip(*rows, strict=True):
        np.testing.assert_array_equal(one[: len(other)], other)
    bill, plain = asdict(with_block.memory), asdict(without.memory)
    assert plain["mtp"] == 0 < bill["mtp"]
    assert [kind for kind in bill if bill[kind] != plain[kind]] == ["state", "kept_rows", "mtp", "exchange"]


def test_snapshots_carry_the_row_that_waits(load_model):
    name = "mtp-a-f32"
    model, case = load_model(name, kv_type="f32"), load_case(name, "p65")
    cache, other = model.new_cache(), model.new_cache()
    model.extend(case.token_ids[:30], cache)
    snapshots = [cache.snapshot(), cache.snapshot(on_host=True)]
    before = block_of(model, cache)
    model.extend(case.token_ids[30:], cache)
    whole = block_of(model, cache)
    for snapshot in snapshots:
        model.extend([5, 6, 7], other)  # another cache's row is the live one
        cache.restore(snapshot)
        for got, want in zip(block_of(model, cache), before, strict=True):
            np.testing.assert_array_equal(got, want)
        model.extend(case.token_ids[30:], cache)
        for got, want in zip(block_of(model, cache), whole, strict=True):
            np.testing.assert_array_equal(got, want)
    assert_block(model, cache, reference_block(name, case))
    cache.close()
    other.close()


def test_a_failed_prefill_leaves_it_as_it_was(load_model):
    model = load_model("mtp-a-f32", kv_type="f32", prefill_chunk=32)
    cache = model.new_cache()
    model.extend(range(40), cache)
    before = block_of(model, cache)

    def interrupt(done: int, total: int) -> None:
        if done >= 32:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model.prefill(range(100), cache=cache, progress=interrupt)
    for got, want in zip(block_of(model, cache), before, strict=True):
        np.testing.assert_array_equal(got, want)
    cache.close()


@pytest.mark.parametrize(("precision", "name", "copies"), [("full", "mtp-a-f32", False), ("half", "mtp-c-mixed", True)])
def test_a_companion_file_does_as_the_whole_file(load_model, tmp_path, precision, name, copies):
    """A trunk of one file, the block of another: with copies of the trunk's tensors, or its own alone."""
    path = companion_of(model_path(name), tmp_path / "block.gguf", copies)
    whole = load_model(name, precision=precision)
    logits = []
    with vkprefill.load(model_path(name), max_context=512, precision=precision, mtp=path) as model:
        for each in (whole, model):
            cache = each.new_cache()
            each.extend(range(100), cache)
            logits.append(block_of(each, cache))
            cache.close()
        assert model.memory == whole.memory
    for one, other in zip(*logits, strict=True):
        np.testing.assert_array_equal(one, other)


def test_half_precision_is_near(load_model):
    """As far from full precision as the trunk's own keys are."""
    case = load_case("mtp-b-q4km", "p65")
    rows = []
    for precision in ("full", "half"):
        model = load_model("mtp-b-q4km", kv_type="f32", precision=precision)
        cache = model.new_cache()
        model.extend(case.token_ids, cache)
        rows.append(block_of(model, cache))
        cache.close()
    for full, half, what in zip(*rows, ("keys", "values", "row"), strict=True):
        assert_close(half, full, 20 * LOGITS * rms(full), what)
        assert (half != full).any()


def test_a_companion_alone_is_refused(tmp_path):
    path = companion_of(model_path("mtp-a-f32"), tmp_path / "block.gguf")
    with pytest.raises(vkprefill.UnsupportedModelError, match="block alone"):
        vkprefill.load(path)
    with pytest.raises(vkprefill.UnsupportedModelError, match="no multi-token-prediction block"):
        vkprefill.load(model_path("tiny-a-f32"), mtp=model_path("tiny-a-f32"))
    with pytest.raises(vkprefill.UnsupportedModelError, match="trunk layers 4, wanted 3"):
        vkprefill.load(model_path("mtp-c-mixed"), mtp=path)
