"""TransformerLens's ActivationCache over what we record: its names, its sums, and its own scan of a delta-net layer."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformer_lens import ActivationCache
from transformer_lens.model_bridge.generalized_components import GatedDeltaNetBridge

from tests.reference.fixtures import rms
from vkprefill import AttentionCapture

EXACT = 1e-5  # of the RMS: sums of float32 in another order
NORMED_AGAIN = 1e-4  # its scan brings keys to length 1 itself, with 1e-6 added to their square: 5e-7 of each write


@pytest.fixture
def cache(model, recorded) -> ActivationCache:
    """Of a model's it asks for the number of layers only, as long as no weights are wanted."""
    facts = SimpleNamespace(cfg=SimpleNamespace(n_layers=model.config.num_hidden_layers, attn_only=False))
    arrays = recorded.to_transformer_lens()
    return ActivationCache({name: torch.from_numpy(array) for name, array in arrays.items()}, facts)


@pytest.fixture
def scan() -> GatedDeltaNetBridge:
    return GatedDeltaNetBridge(name="linear_attn")


def check(got: torch.Tensor, want: np.ndarray, limit: float = EXACT) -> None:
    assert tuple(got.shape) == want.shape
    error = np.abs(got.numpy() - want).max() / rms(want)
    assert error <= limit, f"{error:.1e} of the RMS"


def test_names(cache, recorded):
    """Its short names, where it knows the place of one."""
    for key in (("resid_post", 2), ("resid_pre", -1), ("q", 3), ("rot_k", 3), ("pattern", 3), ("z", 3, "attn")):
        mine = (key[0], key[1] % 4, *key[2:])
        assert np.array_equal(cache[key][0].numpy(), recorded[mine]), key
    for key in (("post", 1), ("pre_linear", 0), ("mlp_out", 3), ("attn_out", 0)):
        assert np.array_equal(cache[key][0].numpy(), recorded[key]), key
    assert np.array_equal(cache["embed"][0].numpy(), recorded["embed"])
    assert cache.remove_batch_dim()["resid_post", 0].shape == recorded["resid_post", 0].shape


def test_the_residual_stream_is_the_sum_of_its_parts(cache, recorded):
    parts, labels = cache.decompose_resid(return_labels=True)
    layers = [f"{layer}_{part}" for layer in range(4) for part in ("attn_out", "mlp_out")]
    assert labels == ["embed", *layers]
    check(parts.sum(0)[0], recorded["resid_post", 3])
    streams, labels = cache.accumulated_resid(incl_mid=True, return_labels=True)
    assert labels[-1] == "final_post" and len(labels) == 9
    assert np.array_equal(streams[3][0].numpy(), recorded["resid_mid", 1])
    assert cache.stack_activation("resid_post").shape == (4, 1, *recorded["resid_post", 0].shape)


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_its_scan_gives_our_states(model, cache, recorded, scan, layer):
    """Of all tokens, from our keys, values and gates: shapes, order of heads, signs and scales are its."""
    assert model.config.linear_num_key_heads < model.config.linear_num_value_heads
    states = scan.compute_ssm_state(cache, layer)
    check(states, cache[f"blocks.{layer}.linear_attn.hook_ssm_state"].numpy(), NORMED_AGAIN)


def test_our_rows_are_exact_where_its_are_a_sketch(model, recorded, cache, scan):
    """Both mix the values of the tokens; its leave out what later keys take away."""
    capture = AttentionCapture(layers=(), queries=None, delta_layers=(1,))
    model.prefill(recorded.token_ids.tolist(), capture=capture)
    values, outputs = (recorded[name, 1, "linear_attn"].transpose(1, 0, 2) for name in ("v", "recurrence_out"))
    check(torch.from_numpy(capture.delta_pattern[1] @ values), outputs)
    rows = scan.compute_effective_attention(cache, 1)[0]
    assert rows.shape == capture.delta_pattern[1].shape
    theirs = (rows @ cache["blocks.1.linear_attn.hook_v"][0].transpose(0, 1)).numpy() / 8  # 1/sqrt(Dk), which it leaves
    order = [0, 2, 1, 3]
    assert np.abs(theirs - outputs[order]).max() > 1000 * EXACT * rms(outputs)
