"""Sizes of the models that make_model writes: a tiny one, and those of the released models."""

import math

import numpy as np

from vkprefill.gguf.config import FULL_ATTENTION, LINEAR_ATTENTION, ModelConfig
from vkprefill.gguf.experts import Experts
from vkprefill.gguf.keys import ARCHITECTURE, MIXTURE

_RELEASED = {
    "vocab_size": 248320,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "rotary_dim": 64,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "linear_head_dim": 128,
    "tie_word_embeddings": True,
}
_RELEASED_LARGE = {**_RELEASED, "num_hidden_layers": 32, "num_attention_heads": 16, "num_key_value_heads": 4}
_RELEASED_LARGE["linear_num_value_heads"] = 32

SHAPES: dict[str, dict[str, int]] = {
    "tiny": {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_nextn_layers": 0,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rotary_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_head_dim": 16,
        "full_attention_interval": 4,
        "tie_word_embeddings": False,
    },
    "0.8B": {
        **_RELEASED,
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
    },
    "2B": {
        **_RELEASED,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
    },
    "4B": {**_RELEASED_LARGE, "hidden_size": 2560, "intermediate_size": 9216},
    "9B": {**_RELEASED_LARGE, "hidden_size": 4096, "intermediate_size": 12288, "tie_word_embeddings": False},
    "35B-A3B": {
        **_RELEASED,
        "hidden_size": 2048,
        "intermediate_size": 512,
        "num_hidden_layers": 40,
        "num_attention_heads": 16,
        "linear_num_value_heads": 32,
        "tie_word_embeddings": False,
        "num_experts": 256,
        "experts_per_token": 8,
        "expert_size": 512,
    },
}
# Of mixtures; without them a model is dense.
EXPERT_SIZES = ("num_experts", "experts_per_token", "expert_size")


def make_config(shape: str = "tiny", **sizes: int) -> ModelConfig:
    """The config of a named shape, with some sizes replaced.

    `sizes`: the keys of SHAPES["tiny"]; those are ModelConfig's fields, except linear_head_dim (Dk = Dv) and
    full_attention_interval (layer i is full attention where (i + 1) % interval is 0). And EXPERT_SIZES, all or none.
    """
    known = (*SHAPES["tiny"], *EXPERT_SIZES)
    if unknown := sizes.keys() - set(known):
        raise ValueError(f"unknown size {min(unknown)}, wanted one of {', '.join(known)}")
    values = {"num_nextn_layers": 0, "full_attention_interval": 4, **SHAPES[shape], **sizes}
    count, per_token, size = (values.pop(name, 0) for name in EXPERT_SIZES)
    blocks = values["num_hidden_layers"] + values["num_nextn_layers"]
    experts = Experts(count, (per_token,) * blocks, (size,) * blocks) if count else None
    interval, linear_head_dim = values.pop("full_attention_interval"), values.pop("linear_head_dim")
    tied = bool(values.pop("tie_word_embeddings"))
    kinds = [LINEAR_ATTENTION if (i + 1) % interval else FULL_ATTENTION for i in range(values["num_hidden_layers"])]
    return ModelConfig(
        name=f"random-{MIXTURE if experts else ARCHITECTURE}-{shape}",
        experts=experts,
        layer_types=tuple(kinds),
        linear_key_head_dim=linear_head_dim,
        linear_value_head_dim=linear_head_dim,
        linear_conv_kernel_dim=4,
        rms_norm_eps=float(np.float32(1e-6)),  # as the file holds it
        rope_theta=1e7,
        attention_scale=1 / math.sqrt(values["head_dim"]),
        max_position_embeddings=262144,
        tie_word_embeddings=tied,
        **values,
    )
