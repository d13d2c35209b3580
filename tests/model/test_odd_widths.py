"""Models whose rows are no multiple of 32, as floats may have them, against the float64 oracle."""

import pytest

from tests.model.test_small_types import assert_oracle

# Hidden rows of 48, feed-forward of 80; 3 heads of 16 in attention and delta net, whose outputs are rows of 48 too.
ODD = {"hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16}
ODD |= {"linear_num_key_heads": 1, "linear_num_value_heads": 3, "num_hidden_layers": 4, "full_attention_interval": 2}
EXPERTS = {"num_experts": 5, "experts_per_token": 2, "expert_size": 112}


@pytest.mark.parametrize("experts", [{}, EXPERTS], ids=["dense", "mixture"])
@pytest.mark.parametrize("mix", ["f32", "f16", "bf16"])
def test_against_the_oracle(tmp_path, mix, experts):
    assert_oracle(tmp_path / "model.gguf", {**ODD, **experts}, mix, seed=4)


def test_rows_that_blocks_cannot_have_are_floats(tmp_path):
    """As llama-quantize leaves them: rows of 64 are Q8_0, of 80 and of 112 F16."""
    assert_oracle(tmp_path / "model.gguf", {**ODD, **EXPERTS, "hidden_size": 64}, "q8_0", seed=5)


def test_products_of_halves(tmp_path):
    """Within what rounding to halves costs, as in half precision's other tests."""
    assert_oracle(tmp_path / "model.gguf", {**ODD, **EXPERTS}, "f16", seed=7, limit=1e-2, precision="half")
