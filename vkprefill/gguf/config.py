"""Metadata -> ModelConfig: the sizes of a Qwen3.5 model (`qwen35`, or `qwen35moe`: a mixture of experts) under their
Hugging Face names.

The only place that knows metadata keys of the architecture. Values are checked for type, range and consistency, and
against what the kernels can run, so that nothing later has to doubt a size.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from vkprefill.display import printable
from vkprefill.errors import GGUFError, UnsupportedModelError
from vkprefill.gguf.experts import WIDTH_MULTIPLE, Experts, read_experts
from vkprefill.gguf.file import GGUFFile
from vkprefill.gguf.keys import ARCHITECTURE, MIXTURE, Keys

FULL_ATTENTION = "full_attention"
LINEAR_ATTENTION = "linear_attention"

# Two tensors say what no key does: the vocabulary's size, and whether the head has a matrix of its own.
TOKEN_EMBEDDING = "token_embd.weight"
OUTPUT = "output.weight"
FIRST_NORM = "blk.0.attn_norm.weight"  # every trunk has it

DEFAULT_FULL_ATTENTION_INTERVAL = 4
CONV_KERNEL = 4  # taps the convolution shader is written for
HEAD_DIM_MULTIPLE = 4
MAX_HEAD_DIM = 512
STATE_SIZES = (16, 32, 64, 128, 256)


@dataclass(frozen=True)
class ModelConfig:
    """Sizes and constants of a model. The trunk has `num_hidden_layers`; a multi-token-prediction block may follow it,
    in the same file or in one of its own (num_nextn_layers 1). experts: None for a dense model.
    """

    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_nextn_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rotary_dim: int
    attention_scale: float
    max_position_embeddings: int
    layer_types: tuple[str, ...]
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    tie_word_embeddings: bool
    experts: Experts | None = None

    @property
    def architecture(self) -> str:
        return MIXTURE if self.experts else ARCHITECTURE

    @property
    def q_dim(self) -> int:
        """Width of all query heads together, H * Dh; attn_q gives twice as much (query and gate)."""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        """Width of all key (or value) heads together, G * Dh."""
        return self.num_key_value_heads * self.head_dim

    @property
    def num_key_value_groups(self) -> int:
        """Query heads per KV head, H / G."""
        return self.num_attention_heads // self.num_key_value_heads

    @property
    def linear_key_dim(self) -> int:
        """Hk * Dk."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def linear_value_dim(self) -> int:
        """Hv * Dv."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_dim(self) -> int:
        """Channels C of the convolution: queries, keys, values."""
        return 2 * self.linear_key_dim + self.linear_value_dim

    @cached_property
    def attention_layers(self) -> tuple[int, ...]:
        """Indices of the full-attention layers of the trunk."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind == FULL_ATTENTION)

    @cached_property
    def linear_layers(self) -> tuple[int, ...]:
        """Indices of the gated-delta-net layers of the trunk."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind == LINEAR_ATTENTION)

    @classmethod
    def from_gguf(cls, file: GGUFFile, trunk: "ModelConfig | None" = None) -> "ModelConfig":
        """The config of an open file. trunk: of the model that the file may bring a multi-token-prediction block for;
        without it a file that holds a block alone is refused, and with it the vocabulary of one without an embedding
        is the model's.

        Raises GGUFError for keys that are missing, of a wrong type, out of range or at odds with each other, and
        UnsupportedModelError for another architecture or for sizes and features the engine does not have.
        """
        keys = Keys(file)
        keys.check_architecture()
        if trunk is None:
            _check_has_trunk(file)
        block_count = keys.integer("block_count", 1, 1024)
        num_nextn_layers = keys.integer("nextn_predict_layers", 0, block_count - 1, default=0)
        num_hidden_layers = block_count - num_nextn_layers
        head_dim = keys.integer("attention.key_length", 1, 65536)
        state_size = keys.integer("ssm.state_size", 1, 65536)
        config = cls(
            name=keys.model_name(),
            vocab_size=_vocab_size(file, trunk),
            hidden_size=keys.integer("embedding_length", 1, 1 << 20),
            intermediate_size=_intermediate_size(keys, block_count),
            num_hidden_layers=num_hidden_layers,
            num_nextn_layers=num_nextn_layers,
            num_attention_heads=keys.same_integer("attention.head_count", 1, 1024, block_count),
            num_key_value_heads=keys.same_integer("attention.head_count_kv", 1, 1024, block_count),
            head_dim=head_dim,
            rms_norm_eps=keys.positive("attention.layer_norm_rms_epsilon"),
            rope_theta=keys.positive("rope.freq_base"),
            rotary_dim=keys.integer("rope.dimension_count", 2, 65536),
            attention_scale=keys.positive("attention.scale", default=1 / math.sqrt(head_dim)),
            max_position_embeddings=keys.integer("context_length", 1, 1 << 30),
            layer_types=_layer_types(keys, block_count, num_hidden_layers),
            linear_num_key_heads=keys.integer("ssm.group_count", 1, 1024),
            linear_num_value_heads=keys.integer("ssm.time_step_rank", 1, 1024),
            linear_key_head_dim=state_size,
            linear_value_head_dim=state_size,
            linear_conv_kernel_dim=keys.integer("ssm.conv_kernel", 1, 1024),
            tie_word_embeddings=OUTPUT not in file.tensors,
            experts=read_experts(keys, file, block_count),
        )
        _check_consistent(config, keys)
        _check_rope(config, keys)
        _check_supported(config, file.label)
        return config


def is_companion(file: GGUFFile) -> bool:
    """Whether a file holds a multi-token-prediction block without the trunk."""
    return FIRST_NORM not in file.tensors and any(".nextn." in name for name in file.tensors)


def _check_has_trunk(file: GGUFFile) -> None:
    if is_companion(file):
        raise UnsupportedModelError(
            f"{file.label}: a multi-token-prediction block alone ({FIRST_NORM} is missing), wanted a model; give this "
            "file beside the model that it belongs to"
        )


def _vocab_size(file: GGUFFile, trunk: ModelConfig | None) -> int:
    """The second GGUF size of the token embedding: no key holds it. A companion takes over the trunk's embedding."""
    if trunk is not None and is_companion(file) and TOKEN_EMBEDDING not in file.tensors:
        return trunk.vocab_size
    shape = file.info(TOKEN_EMBEDDING).shape
    if len(shape) != 2:
        raise GGUFError(f"{file.label}: {TOKEN_EMBEDDING}: shape {list(shape)}, wanted two dimensions")
    return shape[0]


def _intermediate_size(keys: Keys, block_count: int) -> int:
    """Of the feed-forward layers; of a mixture, of the expert that every token takes."""
    key = "expert_shared_feed_forward_length"
    if keys.architecture == MIXTURE and keys.has(key):
        return keys.same_integer(key, 1, 1 << 20, block_count)
    return keys.same_integer("feed_forward_length", 1, 1 << 20, block_count)


def _layer_types(keys: Keys, block_count: int, num_hidden_layers: int) -> tuple[str, ...]:
    """Kinds of the trunk's layers: from the array of flags (newer converters) or else from the interval."""
    key = "attention.recurrent_layers"
    flags = keys.get(key, None)
    if flags is None:
        interval = keys.integer("full_attention_interval", 1, 1024, default=DEFAULT_FULL_ATTENTION_INTERVAL)
        recurrent: Sequence[bool] = [(i + 1) % interval != 0 for i in range(num_hidden_layers)]
    else:
        right_size = isinstance(flags, np.ndarray) and flags.size in (block_count, num_hidden_layers)
        if not right_size or flags.dtype.kind not in "biu" or not np.isin(flags, (0, 1)).all():
            raise keys.error(key, flags, f"{block_count} bools, one for each block")
        recurrent = flags[:num_hidden_layers]
    return tuple(LINEAR_ATTENTION if flag else FULL_ATTENTION for flag in recurrent)


def _check_consistent(config: ModelConfig, keys: Keys) -> None:
    """Keys that must agree with each other in any sound file."""
    c = config
    value_length = keys.integer("attention.value_length", 1, 65536)
    inner_size = keys.integer("ssm.inner_size", 1, 1 << 24)
    if inner_size != c.linear_value_dim:
        raise keys.error(
            "ssm.inner_size",
            inner_size,
            f"{c.linear_value_dim} (time_step_rank {c.linear_num_value_heads} x state_size {c.linear_value_head_dim})",
        )
    if c.num_attention_heads % c.num_key_value_heads:
        raise keys.error(
            "attention.head_count", c.num_attention_heads, f"a multiple of {c.num_key_value_heads} KV heads"
        )
    if c.linear_num_value_heads % c.linear_num_key_heads:
        raise keys.error(
            "ssm.time_step_rank", c.linear_num_value_heads, f"a multiple of group_count {c.linear_num_key_heads}"
        )
    if c.rotary_dim % 2 or c.rotary_dim > c.head_dim:
        raise keys.error("rope.dimension_count", c.rotary_dim, f"an even number up to key_length {c.head_dim}")
    if value_length != c.head_dim:
        raise UnsupportedModelError(
            f"{keys.label}: value_length {value_length} is not supported, wanted key_length {c.head_dim}"
        )


def _check_rope(config: ModelConfig, keys: Keys) -> None:
    """Only plain rotary embedding is supported: no scaling, and sections that give every pair the text position.

    With interleaved M-RoPE pair i takes component i mod 3 as long as that component's section lasts (llama.cpp,
    ggml_rope_multi); the rest would be rotated by position 0.
    """
    scaling = keys.get("rope.scaling.type", None)
    factor = keys.get("rope.scaling.factor", 1.0)
    if scaling is not None and not isinstance(scaling, str):
        raise keys.error("rope.scaling.type", scaling, "a string")
    if not isinstance(factor, float):
        raise keys.error("rope.scaling.factor", factor, "a floating-point number")
    if scaling not in (None, "none") or (scaling is None and factor not in (0.0, 1.0)):  # a factor of 0 means unset
        raise UnsupportedModelError(
            f"{keys.label}: rope scaling (type {printable(scaling)}, factor {factor}) is not supported, wanted none"
        )
    key = "rope.dimension_sections"
    sections = keys.get(key)
    if not isinstance(sections, np.ndarray) or sections.dtype.kind not in "iu" or sections.size not in (3, 4):
        raise keys.error(key, sections, "an array of 4 integers")
    if any(i // 3 >= sections[i % 3] for i in range(config.rotary_dim // 2)):
        raise UnsupportedModelError(
            f"{keys.label}: {keys.full(key)}: sections {sections.tolist()} do not cover the {config.rotary_dim // 2}"
            " rotary pairs in turn"
        )


def _check_supported(config: ModelConfig, label: str) -> None:
    """Sizes the kernels are written for."""
    c = config
    widths = {
        "embedding_length": c.hidden_size,
        "feed_forward_length": c.intermediate_size,
        "head_count x key_length": c.q_dim,
    }
    wanted = [(what, n, n % WIDTH_MULTIPLE == 0, f"a multiple of {WIDTH_MULTIPLE}") for what, n in widths.items()]
    wanted += [
        (
            "attention.key_length",
            c.head_dim,
            c.head_dim % HEAD_DIM_MULTIPLE == 0 and c.head_dim <= MAX_HEAD_DIM,
            f"a multiple of {HEAD_DIM_MULTIPLE} up to {MAX_HEAD_DIM}",
        ),
        ("ssm.state_size", c.linear_key_head_dim, c.linear_key_head_dim in STATE_SIZES, f"one of {STATE_SIZES}"),
        ("ssm.conv_kernel", c.linear_conv_kernel_dim, c.linear_conv_kernel_dim == CONV_KERNEL, str(CONV_KERNEL)),
        ("nextn_predict_layers", c.num_nextn_layers, c.num_nextn_layers <= 1, "0 or 1"),
        ("full-attention layers", len(c.attention_layers), len(c.attention_layers) > 0, "at least one"),
        ("gated-delta-net layers", len(c.linear_layers), len(c.linear_layers) > 0, "at least one"),
    ]
    for what, found, supported, limit in wanted:
        if not supported:
            raise UnsupportedModelError(f"{label}: {what} {found} is not supported, wanted {limit}")
