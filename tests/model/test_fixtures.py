"""Logits, states, keys, values and hidden states of the tiny models against llama.cpp's arrays."""

import numpy as np
import pytest

from tests.reference.fixtures import (
    CASES,
    FIXTURES,
    INTERMEDIATE,
    LOGITS,
    Case,
    engine_limit,
    load_case,
    model_path,
    rms,
)
from tests.reference.forward import KVState, ReferenceModel
from vkprefill.engine.cache import Cache
from vkprefill.engine.model import Model
from vkprefill.engine.sizes import PAGE

F16_LOGITS, F16_MARGIN = (
    1e-2,
    0.05,
)  # a cache of halves: part of the RMS; margin of logits above which the choice must not change


def run_case(model: Model, case: Case, cache: Cache) -> np.ndarray:
    for token_ids, positions in case.parts():
        logits = model.prefill(token_ids, positions, cache)
    return logits


def assert_close(got: np.ndarray, want: np.ndarray, limit: float, label: str) -> None:
    assert got.shape == want.shape, f"{label}: shape {got.shape}, wanted {want.shape}"
    assert np.isfinite(got).all(), f"{label}: NaN or infinity"
    error = np.abs(got - want)
    worst = np.unravel_index(error.argmax(), error.shape)
    assert error.max() <= limit, f"{label}: {error.max():.2e} at {worst}, limit {limit:.2e}"


def cached_rows(model: Model, cache: Cache, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values [S, G, Dh] of a layer, put together from the pages."""
    config, kv = model.config, cache.pool.kv[layer]
    pages, groups, words = len(cache.pages), config.num_key_value_heads, config.head_dim // 4
    value_type = np.float16 if model.kv_type == "f16" else np.float32
    keys, values = (b.read()[cache.pages].view(value_type).reshape(pages, groups, -1) for b in (kv.keys, kv.values))
    keys = keys.reshape(pages, groups, words, PAGE, 4).transpose(0, 3, 1, 2, 4)
    if model.kv_type == "f16":  # in pairs of slots
        values = values.reshape(pages, groups, PAGE // 2, config.head_dim, 2).transpose(0, 2, 4, 1, 3)
    else:
        values = values.reshape(pages, groups, PAGE, words, 4).transpose(0, 2, 1, 3, 4)
    return tuple(rows.reshape(pages * PAGE, groups, config.head_dim)[: len(cache)] for rows in (keys, values))


def states(model: Model, cache: Cache, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """Convolution [C, 3] and recurrent state [Hv, Dv, Dk] of a layer of the cache that ran last."""
    config, at, live = model.config, cache.pool.offsets[layer], cache.pool.state.read()
    channels, heads = config.conv_dim, config.linear_num_value_heads
    conv = live[at.conv : at.conv + 3 * channels].reshape(3, channels).T
    size = config.linear_value_head_dim, config.linear_key_head_dim
    return conv, live[at.recurrent : at.recurrent + heads * size[0] * size[1]].reshape(heads, *size)


@pytest.mark.parametrize("case_name", CASES)
@pytest.mark.parametrize("name", FIXTURES)
def test_last_logits_states_and_hidden_states(load_model, name, case_name):
    model, case = load_model(name, kv_type="f32"), load_case(name, case_name)
    cache = model.new_cache()
    logits = run_case(model, case, cache)
    assert_close(logits, case.arrays["result_output"][-1], engine_limit(case, "result_output"), "logits")

    last_layer = f"l_out-{model.config.num_hidden_layers - 1}"
    stored = case.arrays[last_layer][-1]
    rows = case.calls[-1] % model.prefill_chunk or model.prefill_chunk
    hidden = model.runner.scratch.x.read()[rows - 1]
    assert_close(hidden, stored, INTERMEDIATE * rms(stored), last_layer)

    for layer in model.config.linear_layers:
        conv, recurrent = states(model, cache, layer)
        for key, got in ((f"conv_state_last-{layer}", conv), (f"new_state-{layer}", recurrent)):
            if key in case.arrays:
                assert_close(got, case.arrays[key], engine_limit(case, key), key)
    cache.close()


@pytest.mark.parametrize("case_name", ("p7", "gaps"))
@pytest.mark.parametrize("name", FIXTURES)
def test_states_of_all_layers(load_model, name, case_name):
    """Every layer's states, keys and values against the numpy reference, which the arrays of llama.cpp anchor."""
    model, case = load_model(name, kv_type="f32"), load_case(name, case_name)
    cache, reference = model.new_cache(), ReferenceModel(model_path(name))
    run_case(model, case, cache)
    wanted = reference.new_state()
    for token_ids, positions in case.parts():
        reference.forward(token_ids, positions, wanted)
    for layer, want in enumerate(wanted):
        if isinstance(want, KVState):
            keys, values = cached_rows(model, cache, layer)
            assert_close(keys, want.keys, INTERMEDIATE * rms(want.keys), f"keys of layer {layer}")
            assert_close(values, want.values, INTERMEDIATE * rms(want.values), f"values of layer {layer}")
        else:
            conv, recurrent = states(model, cache, layer)
            assert_close(conv, want.conv.T, INTERMEDIATE * rms(want.conv), f"convolution state of layer {layer}")
            assert_close(recurrent, want.memory, INTERMEDIATE * rms(want.memory), f"recurrent state of layer {layer}")
    cache.close()


@pytest.mark.parametrize("name", FIXTURES)
def test_keys_and_values_of_llama_cpp(load_model, name):
    model, case = load_model(name, kv_type="f32"), load_case(name, "p7")
    cache = model.new_cache()
    run_case(model, case, cache)
    for layer in model.config.attention_layers:
        for key, got in zip((f"Kcur-{layer}", f"Vcur-{layer}"), cached_rows(model, cache, layer), strict=True):
            stored = case.arrays[key].reshape(got.shape)
            assert_close(got, stored, engine_limit(case, key), key)
    cache.close()


@pytest.mark.parametrize("case_name", CASES)
@pytest.mark.parametrize("name", FIXTURES)
def test_logits_of_every_stored_token(load_model, name, case_name):
    model, case = load_model(name, kv_type="f32"), load_case(name, case_name)
    stored = case.arrays["result_output"]
    rows = model.logits(case.token_ids, case.positions)
    assert rows.shape == (len(case.token_ids), model.config.vocab_size) and rows.dtype == np.float32
    assert_close(rows[-len(stored) :], stored, LOGITS * rms(stored), "logits")


@pytest.mark.parametrize("name", FIXTURES)
def test_half_cache(load_model, name):
    model = load_model(name, kv_type="f16")
    for case_name in CASES:
        case = load_case(name, case_name)
        stored = case.arrays["result_output"]
        rows = model.logits(case.token_ids, case.positions)[-len(stored) :]
        assert_close(rows, stored, F16_LOGITS * rms(stored), f"{case_name} logits")
        best_two = np.sort(stored, axis=-1)[:, -2:]
        clear = best_two[:, 1] - best_two[:, 0] > F16_MARGIN
        assert (rows.argmax(-1) == stored.argmax(-1))[clear].all()


def test_a_prediction_block_is_not_part_of_the_trunk(load_model):
    model = load_model("tiny-d-mixed", kv_type="f32")
    assert model.config.num_nextn_layers == 1 and model.has_mtp
    assert len(model.config.layer_types) == model.config.num_hidden_layers == 4
