"""ModelConfig: round trip through files, derived sizes, and an error for each wrong key."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as TensorType

from tools.make_model import SHAPES, make_config, make_model
from vkprefill.errors import GGUFError, UnsupportedModelError
from vkprefill.gguf.config import FULL_ATTENTION, LINEAR_ATTENTION, ModelConfig
from vkprefill.gguf.file import GGUFFile, TensorInfo, open_gguf
from vkprefill.gguf.purposes import purpose_of

INT_KEYS = [
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "rope.dimension_count",
    "ssm.conv_kernel",
    "ssm.state_size",
    "ssm.group_count",
    "ssm.time_step_rank",
    "ssm.inner_size",
]
FLOAT_KEYS = ["attention.layer_norm_rms_epsilon", "rope.freq_base"]


def ints(*values):
    return np.array(values, np.int32)


def fake_file(changes=None, *, shape=(320, 64), output=True):
    """The tiny model's metadata in an open file without data; `changes` maps keys to values, None removes one."""
    metadata = {
        "general.architecture": "qwen35",
        "general.name": "tiny",
        "qwen35.block_count": 4,
        "qwen35.context_length": 4096,
        "qwen35.embedding_length": 64,
        "qwen35.feed_forward_length": 96,
        "qwen35.attention.head_count": 4,
        "qwen35.attention.head_count_kv": 2,
        "qwen35.attention.key_length": 32,
        "qwen35.attention.value_length": 32,
        "qwen35.attention.layer_norm_rms_epsilon": 1e-6,
        "qwen35.rope.dimension_count": 8,
        "qwen35.rope.dimension_sections": ints(2, 1, 1, 0),
        "qwen35.rope.freq_base": 1e7,
        "qwen35.ssm.conv_kernel": 4,
        "qwen35.ssm.state_size": 16,
        "qwen35.ssm.group_count": 2,
        "qwen35.ssm.time_step_rank": 4,
        "qwen35.ssm.inner_size": 64,
    }
    for key, value in (changes or {}).items():
        key = key if key.startswith("general.") else f"qwen35.{key}"
        metadata.pop(key, None)
        if value is not None:
            metadata[key] = value
    names = {"token_embd.weight": shape, **({"output.weight": shape} if output else {})}
    tensors = {name: TensorInfo(name, size, TensorType.F32, 0, 0) for name, size in names.items() if size}
    return GGUFFile(Path("model.gguf"), 0, metadata, tensors, np.zeros(0, np.uint8))


def config_of(changes=None, **kwargs) -> ModelConfig:
    return ModelConfig.from_gguf(fake_file(changes, **kwargs))


def refused(error, message, changes=None, **kwargs):
    with pytest.raises(error) as caught:
        config_of(changes, **kwargs)
    text = str(caught.value)
    assert type(caught.value) is error and message in text, text
    assert text.startswith("model.gguf: ") and text.isprintable() and len(text) < 300


@pytest.mark.parametrize("nextn, tied, interval", [(0, 0, 4), (1, 1, 2), (1, 0, 3)])
def test_round_trip_through_a_file(tmp_path, nextn, tied, interval):
    config = make_config(num_nextn_layers=nextn, tie_word_embeddings=tied, full_attention_interval=interval)
    path = make_model(tmp_path / "model.gguf", config)
    assert ModelConfig.from_gguf(open_gguf(path)) == config


def test_round_trip_of_layers_at_no_interval(tmp_path):
    kinds = (LINEAR_ATTENTION, FULL_ATTENTION, FULL_ATTENTION, LINEAR_ATTENTION)
    config = dataclasses.replace(make_config(num_nextn_layers=1), layer_types=kinds, attention_scale=0.5)
    assert ModelConfig.from_gguf(open_gguf(make_model(tmp_path / "model.gguf", config))) == config


@pytest.mark.parametrize(
    "shape, conv_dim, value_dim, attention_layers",
    [("0.8B", 6144, 2048, 6), ("2B", 6144, 2048, 6), ("4B", 8192, 4096, 8), ("9B", 8192, 4096, 8)],
)
def test_derived_sizes_of_the_released_models(shape, conv_dim, value_dim, attention_layers):
    config = make_config(shape)
    assert (config.conv_dim, config.linear_value_dim) == (conv_dim, value_dim)
    assert config.linear_key_dim == 2048
    assert config.attention_layers == tuple(range(3, config.num_hidden_layers, 4))
    assert len(config.attention_layers) == attention_layers
    assert sorted(config.attention_layers + config.linear_layers) == list(range(config.num_hidden_layers))
    assert config.q_dim == config.num_attention_heads * 256
    assert config.kv_dim == config.num_key_value_heads * 256
    assert config.num_key_value_groups == 4
    assert SHAPES[shape]["vocab_size"] == config.vocab_size


def test_values_and_defaults():
    config = config_of()
    assert config.name == "tiny" and config.vocab_size == 320 and config.hidden_size == 64
    assert config.num_hidden_layers == 4 and config.num_nextn_layers == 0
    assert config.attention_layers == (3,)  # the interval is absent: 4
    assert config.attention_scale == 1 / math.sqrt(32)
    assert not config.tie_word_embeddings and config_of(output=False).tie_word_embeddings
    assert config_of({"attention.scale": 0.25}).attention_scale == 0.25


def test_nextn_blocks_are_not_part_of_the_trunk():
    config = config_of({"nextn_predict_layers": 1, "full_attention_interval": 3})
    assert (config.num_hidden_layers, config.num_nextn_layers) == (3, 1)
    assert config.attention_layers == (2,)


def test_recurrent_layers_win_over_the_interval():
    flags = np.array([False, True, True, True])
    assert config_of({"attention.recurrent_layers": flags, "full_attention_interval": 2}).attention_layers == (0,)
    assert config_of({"attention.recurrent_layers": ints(1, 0, 1, 0)}).attention_layers == (1, 3)
    trunk_only = {"attention.recurrent_layers": np.array([True, True, False]), "nextn_predict_layers": 1}
    assert config_of(trunk_only).attention_layers == (2,)


@pytest.mark.parametrize(
    "flags", [np.array([True, False]), ints(0, 1, 2, 0), True, ["a"] * 4, np.array([1.0, 0.0, 1.0, 1.0])], ids=str
)
def test_wrong_recurrent_layers(flags):
    refused(GGUFError, "qwen35.attention.recurrent_layers: found ", {"attention.recurrent_layers": flags})


def test_arrays_with_equal_values_for_each_layer():
    config = config_of({"attention.head_count": ints(4, 4, 4, 4), "attention.head_count_kv": ints(2, 2, 2, 2)})
    assert (config.num_attention_heads, config.num_key_value_heads) == (4, 2)
    key = "attention.head_count_kv"
    refused(
        UnsupportedModelError, "head_count_kv: values that differ by layer are not supported", {key: ints(0, 0, 0, 2)}
    )
    refused(GGUFError, "head_count_kv: found [2, 2], wanted an integer, or 4 of them", {key: ints(2, 2)})
    refused(GGUFError, "head_count_kv: found [0, 0, 0, 0], wanted integers from 1 to 1024", {key: ints(0, 0, 0, 0)})
    refused(GGUFError, "head_count_kv: found an array of 99, wanted an integer", {key: ints(*range(99))})


@pytest.mark.parametrize("key", INT_KEYS)
def test_integer_keys(key):
    refused(GGUFError, f"qwen35.{key}: missing key", {key: None})
    for wrong in (0, -1, 1 << 40, 4.0, True, "4", ["4"], ints(4)):
        if not (isinstance(wrong, np.ndarray) and key in ("attention.head_count", "feed_forward_length")):
            refused(GGUFError, f"qwen35.{key}: found ", {key: wrong})


@pytest.mark.parametrize("key", FLOAT_KEYS)
def test_float_keys(key):
    refused(GGUFError, f"qwen35.{key}: missing key", {key: None})
    for wrong in (0.0, -1e-6, math.nan, math.inf, 1, "1e-6", ints(1)):
        refused(GGUFError, f"qwen35.{key}: found ", {key: wrong})


@pytest.mark.parametrize("wrong", [0.0, math.nan, 1, "x"])
def test_wrong_attention_scale(wrong):
    refused(GGUFError, "qwen35.attention.scale: found ", {"attention.scale": wrong})


def test_architecture():
    refused(GGUFError, "general.architecture: missing key", {"general.architecture": None})
    for found, shown in [("llama", "llama"), ("qwen3moe", "qwen3moe"), (7, "7"), (ints(1, 2), "[1 2]")]:
        message = f"architecture {shown} is not supported, wanted qwen35"
        refused(UnsupportedModelError, message, {"general.architecture": found})
    refused(UnsupportedModelError, r"architecture 'a\nb' is not", {"general.architecture": "a\nb"})


def test_files_beside_models():
    """By what they say they are; by name, where they say nothing."""
    for keys, message in (
        ({"general.architecture": "clip"}, "a vision projector (mmproj), which turns pictures into tokens"),
        ({"general.architecture": "clip", "general.type": "mmproj"}, "a vision projector (mmproj)"),
        ({"general.type": "adapter"}, "an adapter (LoRA), which changes the weights of another file"),
        ({"general.architecture": None, "general.type": "imatrix"}, "an importance matrix, which programs that"),
    ):
        refused(UnsupportedModelError, message, keys)
    for name, keys in (("mmproj-F16.gguf", {}), ("x.mmproj.gguf", {"general.type": 3})):
        assert purpose_of(keys, Path(name)).startswith("a vision projector")
        assert purpose_of(keys | {"general.architecture": "qwen35"}, Path(name)) is None


@pytest.mark.parametrize("name, shown", [(None, "model"), (3, "model"), ("", "model"), ("a\x1b[2J", r"'a\x1b[2J'")])
def test_name_is_one_printable_line(name, shown):
    assert config_of({"general.name": name}).name == shown


def test_token_embedding():
    refused(GGUFError, "token_embd.weight: missing tensor", shape=None)
    refused(GGUFError, "token_embd.weight: shape [320], wanted two dimensions", shape=(320,))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"nextn_predict_layers": 4}, "nextn_predict_layers: found 4, wanted an integer from 0 to 3"),
        ({"full_attention_interval": 0}, "full_attention_interval: found 0, wanted an integer from 1 to 1024"),
        ({"ssm.inner_size": 128}, "ssm.inner_size: found 128, wanted 64 (time_step_rank 4 x state_size 16)"),
        ({"attention.head_count": 5}, "attention.head_count: found 5, wanted a multiple of 2 KV heads"),
        ({"ssm.group_count": 3}, "ssm.time_step_rank: found 4, wanted a multiple of group_count 3"),
        ({"rope.dimension_count": 34}, "rope.dimension_count: found 34, wanted an even number up to key_length 32"),
        ({"rope.dimension_count": 7}, "rope.dimension_count: found 7, wanted an even number"),
        ({"rope.dimension_sections": None}, "rope.dimension_sections: missing key"),
        ({"rope.dimension_sections": 4}, "rope.dimension_sections: found 4, wanted an array of 4 integers"),
        ({"rope.dimension_sections": ints(4)}, "rope.dimension_sections: found [4], wanted an array of 4 integers"),
        ({"rope.scaling.type": 1}, "rope.scaling.type: found 1, wanted a string"),
        ({"rope.scaling.factor": ints(1)}, "rope.scaling.factor: found [1], wanted a floating-point number"),
    ],
)
def test_keys_that_are_wrong_or_at_odds(changes, message):
    refused(GGUFError, message, changes)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"attention.value_length": 64}, "value_length 64 is not supported, wanted key_length 32"),
        ({"rope.dimension_sections": ints(1, 1, 1, 0)}, "sections [1, 1, 1, 0] do not cover the 4 rotary pairs"),
        ({"rope.dimension_sections": ints(4, 0, 0, 0)}, "sections [4, 0, 0, 0] do not cover the 4 rotary pairs"),
        ({"rope.dimension_sections": ints(-1, 2, 2, 2)}, "do not cover the 4 rotary pairs"),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0},
            "rope scaling (type yarn, factor 4.0) is not supported",
        ),
        ({"rope.scaling.factor": 2.0}, "rope scaling (type None, factor 2.0) is not supported, wanted none"),
        ({"embedding_length": 88}, "embedding_length 88 is not supported, wanted a multiple of 16"),
        ({"feed_forward_length": 100}, "feed_forward_length 100 is not supported, wanted a multiple of 16"),
        (
            {"attention.head_count": 2, "attention.key_length": 20, "attention.value_length": 20},
            "head_count x key_length 40 is not supported, wanted a multiple of 16",
        ),
        (
            {"attention.key_length": 1024, "attention.value_length": 1024},
            "attention.key_length 1024 is not supported, wanted a multiple of 4 up to 512",
        ),
        (
            {
                "ssm.time_step_rank": 2,
                "ssm.inner_size": 32,
                "ssm.state_size": 16,
                "ssm.group_count": 2,
                "ssm.conv_kernel": 3,
            },
            "ssm.conv_kernel 3 is not supported, wanted 4",
        ),
        ({"ssm.state_size": 24, "ssm.inner_size": 96}, "ssm.state_size 24 is not supported, wanted one of (16, 32, 64"),
        ({"nextn_predict_layers": 2}, "nextn_predict_layers 2 is not supported, wanted 0 or 1"),
        ({"full_attention_interval": 5}, "full-attention layers 0 is not supported, wanted at least one"),
        ({"full_attention_interval": 1}, "gated-delta-net layers 0 is not supported, wanted at least one"),
    ],
)
def test_sound_but_unsupported(changes, message):
    refused(UnsupportedModelError, message, changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope.scaling.type": "none", "rope.scaling.factor": 4.0},
        {"rope.scaling.factor": 1.0},
        {"rope.scaling.factor": 0.0},
        {"rope.dimension_sections": ints(2, 1, 1)},
        {"rope.dimension_sections": ints(11, 11, 10, 0)},
    ],
    ids=str,
)
def test_accepted_variants(changes):
    assert config_of(changes) == config_of()
