"""Mixtures of experts on the device against llama.cpp's arrays: logits, who each token is sent to, the routed sum; the
same bits for few rows together as for one; experts in slabs; the block with experts; the bill.
"""

from dataclasses import replace
from itertools import islice
from unittest import mock

import numpy as np
import pytest

import vkprefill
from tests.model.sparse_requests import SPARSE
from tests.model.test_fixtures import assert_close, run_case
from tests.model.test_mtp import assert_block, reference_block
from tests.reference.fixtures import (
    INTERMEDIATE,
    LOGITS,
    MOE_FIXTURES,
    MOE_MTP_FIXTURES,
    engine_limit,
    load_case,
    load_rounds,
    model_path,
    rms,
)
from tests.reference.forward import ReferenceModel
from tools.make_model import make_model
from tools.model.shapes import make_config
from vkprefill import SpecPrefill
from vkprefill.drafting.drafters import Drafting
from vkprefill.engine import kernels, weights
from vkprefill.engine.model import Model
from vkprefill.generation.sampling import Sampler
from vkprefill.generation.steps import Timings, generate_step
from vkprefill.gguf.config import ModelConfig
from vkprefill.gguf.experts import Experts
from vkprefill.gguf.file import open_gguf
from vkprefill.vulkan.buffer import Buffer
from vkprefill.work import without_pauses

HALF_LOGITS = 1e-2  # products of halves


def seen(model: Model, run, *names: str) -> list[dict[str, np.ndarray]]:
    """What the buffers of Scratch hold after each layer's feed-forward, while `run` runs programs recorded anew."""
    copies: list[dict[str, Buffer]] = []
    add = kernels.add_experts

    def add_and_keep(p, y, shared, shares, x, ids, tiles=None):
        sources = {"ids": ids, "shares": shares, "y": y, "x": x}
        if tiles is not None:
            sources["places"] = tiles.places
        kept = {}
        for name, source in sources.items():
            kept[name] = model.device.buffer(name, source.shape, source.dtype, memory="host", kind="test")
            p.copy(source, kept[name], 0, 0, int(np.prod(source.shape)))
        copies.append(kept)
        add(p, y, shared, shares, x, ids, tiles)

    with mock.patch.object(kernels, "add_experts", add_and_keep):
        model.runner.record(lambda *_: None)
        run()
    found = [{name: buffer.read() for name, buffer in kept.items()} for kept in copies]
    for kept in copies:
        for buffer in kept.values():
            buffer.free()
    model.runner.record(lambda *_: None)
    return found[-model.config.num_hidden_layers :]  # of the program that was recorded last, for this run


@pytest.mark.parametrize("case_name", ("p1", "p7", "p65", "p200", "gaps"))
@pytest.mark.parametrize("name", MOE_FIXTURES)
def test_logits(load_model, name, case_name):
    """In the calls of the case, and of every token in one."""
    model, case = load_model(name, kv_type="f32"), load_case(name, case_name)
    cache, stored = model.new_cache(), case.arrays["result_output"]
    assert_close(run_case(model, case, cache), stored[-1], engine_limit(case, "result_output"), "logits")
    cache.close()
    rows = model.logits(case.token_ids, case.positions)[-len(stored) :]
    assert_close(rows, stored, LOGITS * rms(stored), "logits of every token")


@pytest.mark.parametrize("name", MOE_FIXTURES)
@pytest.mark.parametrize("case_name", ("p7", "gaps"))
def test_every_token_goes_where_it_does_in_llama_cpp(load_model, name, case_name):
    """In every layer; with the shares, and, where it is stored, the routed sum."""
    model, case = load_model(name, kv_type="f32"), load_case(name, case_name)
    tokens = len(case.token_ids)
    layers = seen(model, lambda: model.prefill(case.token_ids, case.positions))
    for layer, found in enumerate(layers):
        choice, share = case.arrays[f"ffn_moe_topk-{layer}"], case.arrays[f"ffn_moe_weights_norm-{layer}"]
        count = choice.shape[1]
        np.testing.assert_array_equal(found["ids"].reshape(-1)[: tokens * count].reshape(tokens, count), choice)
        shares = found["shares"].reshape(-1)[: tokens * (count + 1)].reshape(tokens, count + 1)[:, :count]
        assert_close(shares, share, INTERMEDIATE * rms(share), f"shares of layer {layer}")
        if (stored := case.arrays.get(f"ffn_moe_out-{layer}")) is not None:
            places = found["places"].reshape(-1)[: tokens * count].reshape(tokens, count)
            rows = found["y"].reshape(len(found["y"]), -1)[places][..., : stored.shape[1]]
            routed = (rows * shares[..., None]).sum(1)
            assert_close(routed, stored, INTERMEDIATE * rms(stored), f"routed sum of layer {layer}")


@pytest.mark.parametrize("name", ("moe-b-q4km", "moe-d-256"))
def test_rows_have_the_bits_that_they_have_alone(load_model, name):
    model, ids = load_model(name, kv_type="f32"), load_case(name, "p65").token_ids.tolist()
    cache = model.new_cache()
    model.extend(ids[:40], cache)
    alone = [model.decode(token, cache) for token in ids[40:48]]
    for count in (2, 3, 5, 8):
        cache.reset()
        model.extend(ids[:40], cache)
        rows = model.run_rows(ids[40 : 40 + count], cache)
        for i in range(count):
            np.testing.assert_array_equal(rows.take()[1], alone[i])
    cache.close()


@pytest.mark.parametrize("name", MOE_FIXTURES)
def test_decoding_gives_what_prefill_does(load_model, name):
    model, case = load_model(name, kv_type="f32"), load_case(name, "p65")
    cache = model.new_cache()
    model.extend(case.token_ids[:50], cache)
    for token in case.token_ids[50:].tolist():
        logits = model.decode(token, cache)
    stored = case.arrays["result_output"]
    assert_close(logits, stored[-1], LOGITS * rms(stored), "logits")
    cache.close()


def test_slabs_of_experts_change_nothing(load_model, monkeypatch):
    """Pools so small that each tensor of experts lies in several."""
    name = "moe-c-fused"
    whole, case = load_model(name, kv_type="f32"), load_case(name, "p65")
    largest = max(matrix.words for layer in whole.runner._weights.layers for matrix in of_layer(layer.mlp))
    monkeypatch.setattr(weights, "POOL_BYTES", 3 * 4 * largest)
    monkeypatch.setattr(weights, "PART_BYTES", 3 * 4 * largest)
    with vkprefill.load(model_path(name), kv_type="f32", max_context=512) as model:
        assert all(len(m.slabs) >= 2 for layer in model.runner._weights.layers for m in of_layer(layer.mlp))
        caches = [m.new_cache() for m in (model, whole)]
        for token_ids, positions in case.parts():
            one, other = (m.prefill(token_ids, positions, c) for m, c in zip((model, whole), caches, strict=True))
            np.testing.assert_array_equal(one, other)
        one, other = (m.decode(7, c) for m, c in zip((model, whole), caches, strict=True))
        np.testing.assert_array_equal(one, other)
        for cache in caches:
            cache.close()


def of_layer(mlp: weights.MixtureWeights):
    return mlp.ffn_gate, mlp.ffn_up, mlp.ffn_down


@pytest.mark.parametrize("case_name", ("p7", "p65"))
@pytest.mark.parametrize("name", MOE_MTP_FIXTURES)
def test_block_with_experts(load_model, name, case_name):
    """Its keys and values, the row that waits, and the drafts from there."""
    model, case = load_model(name, kv_type="f32"), load_case(name, case_name)
    assert model.has_mtp
    cache = model.new_cache()
    run_case(model, case, cache)
    assert_block(model, cache, reference_block(name, case))
    cache.close()


@pytest.mark.parametrize("name", MOE_MTP_FIXTURES)
def test_text_with_drafts_is_that_without(load_model, name):
    model, rounds = load_model(name, kv_type="f32"), load_rounds(name)
    sampler = Sampler(vkprefill.SamplingConfig(temperature=0).resolve(model.metadata, False))
    texts = []
    for kind in ("none", "draft-mtp"):
        decode = vkprefill.SpecDecodeConfig(type=kind, n_max=rounds.num_drafts, adaptive=False)
        most = min(24, len(rounds.text))
        cache, drafting = model.new_cache(), Drafting([model.drafter()], decode) if kind != "none" else None
        steps = without_pauses(
            generate_step(model, rounds.prompt, cache, sampler, timings=Timings(), drafting=drafting)
        )
        texts.append(list(islice(steps, most)))
        cache.close()
    assert texts[0] == texts[1] == rounds.text[:most].tolist()


def test_products_of_halves(load_model):
    """Experts' products are of halves where the others are; who a token is sent to is decided in float32."""
    for name in ("moe-b-q4km", "moe-c-fused"):
        model, case = load_model(name, kv_type="f32", precision="half"), load_case(name, "p65")
        assert any("_half_experts_" in kernel or "_dot2_experts_" in kernel for kernel in model.kernels())
        stored = case.arrays["result_output"]
        assert_close(model.logits(case.token_ids)[-len(stored) :], stored, HALF_LOGITS * rms(stored), name)


def test_chunks(load_model):
    """A mixture takes more tokens at a time; chunks of any length give the same within rounding."""
    name = "moe-a-f32"
    model, case = load_model(name, kv_type="f32"), load_case(name, "p200")
    assert model.prefill_chunk == 2048
    stored = case.arrays["result_output"]
    short = load_model(name, kv_type="f32", prefill_chunk=33)
    cache = short.new_cache()
    assert_close(short.prefill(case.token_ids, cache=cache), stored[-1], LOGITS * rms(stored), "chunks of 33")
    cache.close()


def test_sparse_prefill_with_a_dense_draft_capture_and_snapshots(load_model, tiny_draft):
    model, ids = load_model("moe-d-256", kv_type="f32"), load_case("moe-d-256", "p200").token_ids.tolist() * 2
    pair = SpecPrefill(model, tiny_draft, SPARSE)
    out = pair.prefill(ids)
    assert out.status == "active" and len(out.cache) < len(ids) and np.isfinite(out.logits).all()
    pair.close()
    capture = vkprefill.AttentionCapture()
    np.testing.assert_array_equal(model.prefill(ids[:50], capture=capture), model.prefill(ids[:50]))
    assert capture.pattern[1].shape == (4, 1, 50)
    cache = model.new_cache()
    model.extend(ids[:60], cache)
    snapshot = cache.snapshot()
    first = model.decode(5, cache)
    cache.restore(snapshot)
    np.testing.assert_array_equal(model.decode(5, cache), first)
    cache.close()


def test_layers_of_other_sizes(tmp_path):
    """Arrays with a number for each block: experts of a token, their length."""
    config = replace(make_config(), experts=Experts(5, (2, 3, 1, 5), (48, 64, 32, 96)))
    path = make_model(tmp_path / "model.gguf", config)
    assert ModelConfig.from_gguf(open_gguf(path)) == config
    reference, ids = ReferenceModel(path), np.random.default_rng(3).integers(0, 256, 50)
    want = reference.forward(ids, np.arange(50), reference.new_state())["result_output"]
    with vkprefill.load(path, kv_type="f32", max_context=512) as model:
        assert_close(model.logits(ids), want, LOGITS * rms(want), "logits")
        cache = model.new_cache()
        model.extend(ids[:49], cache)
        assert_close(model.decode(int(ids[49]), cache), want[-1], LOGITS * rms(want), "decoded")
        cache.close()


def test_the_bill_is_what_is_allocated(load_model):
    model = load_model("moe-b-q4km", kv_type="f32")
    by_kind = model.device.allocated
    for kind in ("weights", "activations", "mtp"):
        assert getattr(model.memory, kind) == by_kind[kind], kind
