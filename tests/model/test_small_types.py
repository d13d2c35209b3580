"""Whole models whose weights have few bits, against the float64 oracle on the file's own blocks."""

import numpy as np
import pytest

import vkprefill
from tests.model.test_fixtures import assert_close
from tests.reference.fixtures import LOGITS, rms
from tests.reference.forward import ReferenceModel
from tools.make_model import make_model
from tools.model.shapes import make_config
from vkprefill.engine import weights

# Rows of whole blocks of 256 everywhere.
WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "linear_head_dim": 64, "num_hidden_layers": 2}
WIDE |= {"full_attention_interval": 2}
EXPERTS = {"num_experts": 5, "experts_per_token": 2, "expert_size": 256}
TYPES = "iq2_xxs iq2_xs iq2_s iq3_xxs iq3_s q2_k q3_k mxfp4".split()


def assert_oracle(path, sizes: dict[str, int], mix: str, seed: int, limit: float = LOGITS, **options: object) -> int:
    """Prefill of one chunk and more, then decode; cached keys float32. Returns the pools that hold the weights."""
    make_model(path, make_config(**sizes), mix=mix, seed=seed)
    oracle = ReferenceModel(path)
    ids = np.random.default_rng(seed).integers(0, 320, 41).tolist()
    wanted = oracle.forward(ids, range(len(ids)), oracle.new_state())["result_output"]
    with vkprefill.load(path, max_context=512, prefill_chunk=32, kv_type="f32", **options) as model:
        cache = model.new_cache()
        got = [model.prefill(ids[:37], range(37), cache), *(model.decode(token, cache) for token in ids[37:])]
        assert_close(np.stack(got), wanted[36:], limit * rms(wanted), mix)
        return len(model.runner._weights.pools)


@pytest.mark.parametrize("mix", TYPES)
def test_one_type(tmp_path, mix):
    assert_oracle(tmp_path / "model.gguf", WIDE, mix, seed=1)


@pytest.mark.parametrize("mix", ["iq2_s", "iq3_s", "small"])
def test_mixture(tmp_path, monkeypatch, mix):
    """In slabs of two or three experts, and matrices in parts: each of them begins with the grid of its type."""
    monkeypatch.setattr(weights, "POOL_BYTES", 1 << 16)
    monkeypatch.setattr(weights, "PART_BYTES", 1 << 14)
    assert assert_oracle(tmp_path / "model.gguf", {**WIDE, **EXPERTS}, mix, seed=2) > 12


def test_products_of_halves(tmp_path):
    """Rounding of what is multiplied, as in half precision's other tests."""
    assert_oracle(tmp_path / "model.gguf", {**WIDE, **EXPERTS}, "small", seed=3, limit=1e-2, precision="half")
