"""The built-in target's file: its block beside a trunk that stays as it was, and how blocks are added."""

import hashlib
import sys

import numpy as np
import pytest
from gguf import GGMLQuantizationType as TensorType

from tests.model.conftest import BUILT_IN
from tests.unit.test_layering import ROOT
from tools.make_model import make_config, make_model
from vkprefill.gguf.config import ModelConfig
from vkprefill.gguf.file import GGUFFile, open_gguf
from vkprefill.gguf.mtp import find_block
from vkprefill.gguf.tensors import check_tensors, mtp_specs

sys.path.insert(0, str(ROOT / "tools" / "train_demo"))
from add_mtp import add_block  # noqa: E402  (its folder is no package)

# Names, types, shapes and bytes of the trunk's tensors as it was trained: the block is trained for this one.
TRUNK = "cbad30eb9833ec8ddcce47819b9f2de7df3d3365ef0652cb832fb296d2356d3d"


def trunk_of(file: GGUFFile) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    layers = ModelConfig.from_gguf(file).num_hidden_layers
    names = sorted(name for name in file.tensors if not name.startswith(f"blk.{layers}."))
    infos = [file.info(name) for name in names]
    return [(i.name, i.type.name, tuple(i.shape), file.data(i.name).tobytes()) for i in infos]


def values_of(file: GGUFFile) -> dict[str, object]:
    return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in file.metadata.items()}


def test_the_trunk_is_the_one_that_was_trained():
    digest = hashlib.sha256()
    for *described, data in trunk_of(open_gguf(BUILT_IN)):
        digest.update(repr(described).encode() + data)
    assert digest.hexdigest() == TRUNK


def test_its_block():
    file = open_gguf(BUILT_IN)
    config = ModelConfig.from_gguf(file)
    assert (config.num_hidden_layers, config.num_nextn_layers) == (8, 1)
    block = find_block(file, config, "auto")
    types = {file.info(spec.name).type for spec in block.specs}
    assert block.layer == 8 and len(block.specs) == 15 and types == {TensorType.Q8_0, TensorType.F32}


@pytest.mark.parametrize("blocks", [0, 1])
def test_a_block_is_added_or_replaced(tmp_path, blocks):
    """Everything else of the file stays as it was, byte for byte."""
    config = make_config(num_nextn_layers=1)
    path = make_model(tmp_path / "model.gguf", make_config(num_nextn_layers=blocks))
    before = open_gguf(path)
    trunk, metadata = trunk_of(before), values_of(before)
    rng, prefix = np.random.default_rng(1), f"blk.{config.num_hidden_layers}."
    needed, _ = mtp_specs(config, config.num_hidden_layers)
    weights = {s.name.removeprefix(prefix): rng.standard_normal(s.shape).astype(np.float32) for s in needed}
    checkpoint = {  # by the names of tools/train_demo/mtp.py
        name.removeprefix("nextn.") if name.startswith("nextn.") else f"layer.{name}": w for name, w in weights.items()
    }
    add_block(checkpoint, path)
    after = open_gguf(path)
    assert trunk_of(after) == trunk and len(after.tensors) == len(trunk) + len(needed)
    counts = {"qwen35.block_count": config.num_hidden_layers + 1, "qwen35.nextn_predict_layers": 1}
    assert values_of(after) == metadata | counts
    check_tensors(after, ModelConfig.from_gguf(after))
    for name, weight in weights.items():
        found = after.dequantize(prefix + name)
        # Q8_0 rounds to steps of a 127th of the largest of 32 weights, which is below 6
        np.testing.assert_allclose(found, weight, atol=0 if weight.ndim == 1 else 6 / 127 / 2)
