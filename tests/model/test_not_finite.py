"""NaN anywhere ends in an error that names the kind of layer and the remedy, and leaves the cache usable."""

import numpy as np
import pytest

import vkprefill
from tests.reference.fixtures import model_path
from vkprefill.engine.step_input import Best
from vkprefill.gguf.file import open_gguf

NAME, ATTENTION_LAYER, DELTA_LAYER = "tiny-a-f32", 3, 1


def spoilt(folder, tensor: str, value: float):
    """A copy of the fixture whose float32 vector `tensor` is `value` throughout."""
    info = open_gguf(model_path(NAME)).info(tensor)
    content = bytearray(model_path(NAME).read_bytes())
    content[info.offset : info.offset + info.num_bytes] = np.full(info.num_bytes // 4, value, np.float32).tobytes()
    path = folder / "spoilt.gguf"
    path.write_bytes(content)
    return path


def calls(model, cache):
    """Every way to an answer: whole logits and candidates, prefill and decode."""
    return (
        lambda: model.prefill([1, 2, 3], cache=cache),
        lambda: model.prefill_candidates([1, 2, 3], cache, Best(4)),
        lambda: model.logits([1, 2, 3]),
        lambda: model.decode(1, cache),
        lambda: model.decode_candidates(1, cache, Best(4)),
    )


def test_a_key_beyond_half_precision_names_the_cache_type(tmp_path):
    path = spoilt(tmp_path, f"blk.{ATTENTION_LAYER}.attn_k_norm.weight", 1e6)
    message = f'full-attention layer {ATTENTION_LAYER} .*half-precision cache.*65,504.*kv_type="f32"'
    with vkprefill.load(path, max_context=256, kv_type="f16") as model:
        cache = model.new_cache()
        for call in calls(model, cache):
            with pytest.raises(vkprefill.VkPrefillError, match=message):
                call()
            cache.reset()
    with vkprefill.load(path, max_context=256, kv_type="f32") as model:
        assert np.isfinite(model.prefill([1, 2, 3])).all()


def test_an_overflowing_state_names_the_layer(tmp_path):
    path = spoilt(tmp_path, f"blk.{DELTA_LAYER}.attn_norm.weight", 3e38)
    with vkprefill.load(path, max_context=256) as model:
        cache = model.new_cache()
        for call in calls(model, cache):
            with pytest.raises(vkprefill.VkPrefillError, match=f"gated delta-net layer {DELTA_LAYER}$"):
                call()
            cache.reset()


def test_without_a_layer_to_blame(tmp_path):
    with vkprefill.load(spoilt(tmp_path, "output_norm.weight", 3e38), max_context=256) as model:
        with pytest.raises(vkprefill.VkPrefillError, match="logits: found NaN or infinity: the model's activations"):
            model.prefill([1, 2, 3])


def test_what_an_error_leaves(tmp_path):
    """The cache is as before."""
    path = spoilt(tmp_path, f"blk.{ATTENTION_LAYER}.attn_k_norm.weight", 1e6)
    with vkprefill.load(path, max_context=256) as model:
        cache = model.new_cache()
        for call in (lambda: model.prefill([1, 2, 3], cache=cache), lambda: model.decode(1, cache)):
            for _ in range(2):
                with pytest.raises(vkprefill.VkPrefillError, match="NaN or infinity"):
                    call()
                assert len(cache) == 0
