"""What a file says of a mixture of experts: keys, tensors, what is refused."""

import dataclasses

import numpy as np
import pytest

from tests.reference.fixtures import model_path
from tools.make_model import make_model
from tools.model.shapes import make_config
from vkprefill.engine.expert_matrix import most_tiles, stacks_of
from vkprefill.errors import GGUFError, OutOfMemoryError, UnsupportedModelError
from vkprefill.gguf.config import ModelConfig
from vkprefill.gguf.experts import Experts
from vkprefill.gguf.file import open_gguf
from vkprefill.gguf.tensors import check_tensors, layer_specs, read_vector

MIXTURE = {"num_experts": 5, "experts_per_token": 2, "expert_size": 48}


def changed(name: str, removed: tuple[str, ...] = (), **keys: object):
    """A fixture's file with other keys of its architecture."""
    file = open_gguf(model_path(name))
    metadata = {key: value for key, value in file.metadata.items() if key.removeprefix("qwen35moe.") not in removed}
    metadata |= {f"qwen35moe.{key}": value for key, value in keys.items()}
    return dataclasses.replace(file, metadata=metadata)


@pytest.mark.parametrize("nextn", [0, 1])
def test_round_trip(tmp_path, nextn):
    config = make_config(num_nextn_layers=nextn, **MIXTURE)
    file = open_gguf(make_model(tmp_path / "model.gguf", config))
    assert ModelConfig.from_gguf(file) == config and config.architecture == "qwen35moe"
    check_tensors(file, config)
    assert config.experts == Experts(5, (2,) * (4 + nextn), (48,) * (4 + nextn))


def test_released_widths():
    config = make_config("35B-A3B")
    specs = [spec for layer, kind in enumerate(config.layer_types) for spec in layer_specs(config, layer, kind)]
    parameters = sum(int(np.prod(spec.shape)) for spec in specs) + config.hidden_size * (2 * config.vocab_size + 1)
    assert round(parameters / 1e9, 3) == 34.661


def test_lengths_that_are_not_there():
    """An expert's part of feed_forward_length; that of the expert for every token is feed_forward_length itself."""
    lengths = "expert_feed_forward_length", "expert_shared_feed_forward_length"
    config = ModelConfig.from_gguf(changed("moe-a-f32", removed=lengths, feed_forward_length=96))
    assert config.intermediate_size == 96 and config.experts.sizes == (32,) * 4


def test_numbers_for_each_layer():
    keys = {"expert_used_count": np.array([1, 2, 3, 4]), "expert_feed_forward_length": np.array([16, 32, 48, 64])}
    assert ModelConfig.from_gguf(changed("moe-a-f32", **keys)).experts == Experts(12, (1, 2, 3, 4), (16, 32, 48, 64))


@pytest.mark.parametrize(
    ("error", "keys", "message"),
    [
        (UnsupportedModelError, {"expert_group_count": 2}, "2 groups of experts are not supported, wanted one"),
        (GGUFError, {"expert_count": 0}, "qwen35moe.expert_count: found 0, wanted an integer from 1 to 512"),
        (GGUFError, {"expert_count": 513}, "qwen35moe.expert_count: found 513, wanted an integer from 1 to 512"),
        (GGUFError, {"expert_count": np.array([12] * 4)}, "expert_count: found "),
        (GGUFError, {"expert_count": 2}, "expert_used_count: found 3, wanted an integer from 1 to 2"),
        (GGUFError, {"expert_used_count": 0}, "expert_used_count: found 0, wanted an integer from 1 to 12"),
        (GGUFError, {"expert_count": 40, "expert_used_count": 33}, "found 33, wanted an integer from 1 to 32"),
        (GGUFError, {"expert_used_count": 2.5}, "expert_used_count: found 2.5, wanted "),
        (GGUFError, {"expert_feed_forward_length": 0}, "expert_feed_forward_length: found 0, wanted an integer from 1"),
        (GGUFError, {"expert_used_count": 13}, "expert_used_count: found 13, wanted an integer from 1 to 12"),
        (GGUFError, {"expert_used_count": np.array([1, 2])}, "an integer, or 4 of them, one for each block"),
        (GGUFError, {"expert_used_count": np.array([1, 2, 0, 3])}, "wanted integers from 1 to 12"),
        (UnsupportedModelError, {"expert_feed_forward_length": 40}, "40 is not supported, wanted a multiple of 16"),
    ],
)
def test_refused(error, keys, message):
    with pytest.raises(error) as caught:
        ModelConfig.from_gguf(changed("moe-a-f32", **keys))
    assert message in str(caught.value)


def test_missing_keys():
    with pytest.raises(GGUFError, match="expert_count: missing key"):
        ModelConfig.from_gguf(changed("moe-a-f32", removed=("expert_count",)))
    with pytest.raises(GGUFError, match="expert_feed_forward_length: missing key"):
        ModelConfig.from_gguf(changed("moe-a-f32", removed=("expert_feed_forward_length",)))


@pytest.mark.parametrize("name", ["moe-a-f32", "moe-c-fused"])
def test_missing_tensors(name):
    """Each of a feed-forward part is asked for by name, with the shape that it should have."""
    file = open_gguf(model_path(name))
    parts = [one for one in file.tensors if one.startswith("blk.0.ffn_")]
    assert len(parts) == (8 if name == "moe-a-f32" else 7)
    for part in parts:
        tensors = {one: info for one, info in file.tensors.items() if one != part}
        less = dataclasses.replace(file, tensors=tensors)
        with pytest.raises(GGUFError, match=r"blk\.0\.ffn_\w+\.weight: missing tensor, wanted shape \[") as caught:
            check_tensors(less, ModelConfig.from_gguf(less))
        wanted = "ffn_gate_exps" if "gate_up" in part else part  # without the fused one, the others are wanted
        assert wanted in str(caught.value) and str(caught.value).count("\n") == 0


@pytest.mark.parametrize(
    ("part", "keys", "message"),
    [
        ("", {"expert_count": 11}, r"shape \[12, 48, 64\], wanted \[11, 48, 64\]"),
        ("", {"expert_feed_forward_length": 32}, r"shape \[12, 48, 64\], wanted \[12, 32, 64\]"),
        ("", {"expert_shared_feed_forward_length": 64}, r"ffn_gate_shexp.weight: shape \[32, 64\], wanted \[64, 64\]"),
        ("ffn_gate_inp", {}, r"ffn_gate_inp.weight: shape \[64, 12\], wanted \[12, 64\]"),
        ("ffn_down_exps", {}, r"ffn_down_exps.weight: shape \[48, 64, 12\], wanted \[12, 64, 48\]"),
    ],
)
def test_wrong_shapes(part, keys, message):
    file = changed("moe-a-f32", **keys)
    if part:
        name = f"blk.0.{part}.weight"
        turned = dataclasses.replace(file.info(name), shape=file.info(name).shape[::-1])
        file = dataclasses.replace(file, tensors={**file.tensors, name: turned})
    with pytest.raises(GGUFError, match=message):
        check_tensors(file, ModelConfig.from_gguf(file))


def test_a_vector_with_a_size_of_one():
    """As a matrix of one row: llama.cpp reads it, too."""
    file = open_gguf(model_path("moe-a-f32"))
    name, config = "blk.0.ffn_gate_inp_shexp.weight", ModelConfig.from_gguf(file)
    (spec,) = (s for s in layer_specs(config, 0, config.layer_types[0]) if s.name == name)
    row = dataclasses.replace(file.info(name), shape=(1, *file.info(name).shape))
    other = dataclasses.replace(file, tensors={**file.tensors, name: row})
    check_tensors(other, config)
    np.testing.assert_array_equal(read_vector(other, spec), read_vector(file, spec))
    assert read_vector(other, spec).shape == (64,)


def test_unknown_tensors_are_refused():
    """Such as a bias of the router, without which others would be chosen."""
    file = open_gguf(model_path("moe-a-f32"))
    name = "blk.0.exp_probs_b.bias"
    tensors = {**file.tensors, name: dataclasses.replace(file.info("blk.0.attn_norm.weight"), name=name)}
    with pytest.raises(UnsupportedModelError, match=r"exp_probs_b.bias: unknown tensor, not part of a qwen35moe model"):
        check_tensors(dataclasses.replace(file, tensors=tensors), ModelConfig.from_gguf(file))


def test_stacks_of_a_fused_tensor():
    config = ModelConfig.from_gguf(open_gguf(model_path("moe-c-fused")))
    assert config.experts.fused == (0, 1, 2, 3, 4)
    (spec,) = (spec for spec in layer_specs(config, 0, config.layer_types[0]) if "gate_up" in spec.name)
    gate, up = stacks_of(spec)
    assert (gate.name, up.name) == ("blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight")
    assert gate.rows_of(2) == slice(384, 480) and up.rows_of(2) == slice(480, 576)
    assert gate.slabs(100, 350) == [(0, 3), (3, 3), (6, 1)]
    with pytest.raises(OutOfMemoryError, match="an expert takes"):
        gate.slabs(100, 99)


@pytest.mark.parametrize("tile", [8, 16, 32])
def test_tiles_are_enough(tile):
    rng = np.random.default_rng(tile)
    for _ in range(200):
        count, rows = int(rng.integers(1, 40)), int(rng.integers(1, 300))
        shares = rng.multinomial(rows, rng.dirichlet(np.full(count, 0.3)))
        assert sum(-(-n // tile) for n in shares) <= most_tiles(rows, count, tile)
