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
from vkprefill.gguf.tensors import check_tensors, layer_specs

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
        (GGUFError, {"expert_count": 513}, "qwen35moe.expert_count: found 513, wanted an integer from 1 to 512"),
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
