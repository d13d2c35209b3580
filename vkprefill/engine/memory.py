"""The memory bill: every byte a model takes on the device, known before anything is allocated.

The model allocates from these same shapes, so the bill and the allocation cannot drift apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

import numpy as np

from vkprefill.engine.weights import weight_bytes
from vkprefill.errors import RequestError
from vkprefill.gguf.config import ModelConfig
from vkprefill.gguf.file import GGUFFile
from vkprefill.vulkan.device import UPLOAD_SLICE_BYTES

PAGE = 256  # slots of a page of the KV cache, as in shaders/include/kv.glsl
KV_TYPES = ("f16", "f32")
MAX_CANDIDATES = 64  # that the device can deliver for sampling
MAX_CONTEXT, MAX_CHUNK = 1 << 30, 4096
STEP_WORDS = 16
ROW_TILE = 32  # activations are padded to whole tiles: a multiple of the rows that matmul and attention read together


@dataclass(frozen=True)
class MemoryBill:
    """Bytes on the device by kind."""

    weights: int
    kv_cache: int
    state: int
    activations: int
    staging: int

    @property
    def total(self) -> int:
        return self.weights + self.kv_cache + self.state + self.activations + self.staging


def check_sizes(
    max_context: int | None, prefill_chunk: int | None, names: tuple[str, str] = ("max_context", "prefill_chunk")
) -> None:
    """Raise RequestError for sizes that no model is loaded with; None: to be chosen; names: of the two in the error."""
    for name, value, most in zip(names, (max_context, prefill_chunk), (MAX_CONTEXT, MAX_CHUNK), strict=True):
        if value is not None and not (isinstance(value, Integral) and 1 <= value <= most):
            raise RequestError(f"{name}: {value!r}, wanted 1 to {most}")


def num_pages(max_context: int) -> int:
    return -(-max_context // PAGE)


def kv_words(config: ModelConfig, kv_type: str) -> int:
    """32-bit words of the keys (or the values) of one page of one layer."""
    return PAGE * config.kv_dim // (2 if kv_type == "f16" else 1)


def kv_cache_bytes(config: ModelConfig, max_context: int, kv_type: str) -> int:
    """Keys and values of all full-attention layers, with the page table."""
    pages = num_pages(max_context)
    return pages * 4 + 2 * len(config.attention_layers) * pages * kv_words(config, kv_type) * 4


def conv_state_size(config: ModelConfig) -> int:
    """Floats of one layer's convolution state, rounded up to a word of 4."""
    return -(-(config.linear_conv_kernel_dim - 1) * config.conv_dim // 4) * 4


def recurrent_state_size(config: ModelConfig) -> int:
    """Floats of one layer's delta-rule state [Hv, Dv, Dk]."""
    return config.linear_num_value_heads * config.linear_value_head_dim * config.linear_key_head_dim


def state_size(config: ModelConfig) -> int:
    """Floats of the state of all delta-net layers: for each the convolution state, then the recurrent state."""
    return max(4, len(config.linear_layers) * (conv_state_size(config) + recurrent_state_size(config)))


def activation_shapes(
    config: ModelConfig, rows: int, attention_splits: int
) -> dict[str, tuple[tuple[int, ...], type, str]]:
    """Name -> (shape, dtype, memory) of everything a forward pass of `rows` tokens writes but caches and states.

    rows is a multiple of ROW_TILE. Layers share these: each runs when the one before is done.
    """
    c, device, host = config, "device", "host"
    shapes: dict[str, tuple[tuple[int, ...], type, str]] = {
        "step": ((STEP_WORDS,), np.uint32, host),
        "token_ids": ((rows,), np.uint32, host),
        "rope": ((rows, max(1, c.rotary_dim // 2), 2), np.float32, host),
        "x": ((rows, c.hidden_size), np.float32, device),
        "h": ((rows, c.hidden_size), np.float32, device),
        "ffn_gate": ((rows, c.intermediate_size), np.float32, device),
        "ffn_up": ((rows, c.intermediate_size), np.float32, device),
        "logits": ((c.vocab_size,), np.float32, host),
        "seen": ((-(-c.vocab_size // 32),), np.uint32, host),
        "block_best": ((-(-c.vocab_size // 64), 2), np.uint32, device),
        "candidates": ((MAX_CANDIDATES, 2), np.uint32, host),
    }
    if c.attention_layers:
        shapes |= {
            "query_gate": ((rows, 2 * c.q_dim), np.float32, device),
            "query": ((rows, c.q_dim), np.float32, device),
            "key_raw": ((rows, c.kv_dim), np.float32, device),
            "key": ((rows, c.kv_dim), np.float32, device),
            "value": ((rows, c.kv_dim), np.float32, device),
            "attended": ((rows, c.q_dim), np.float32, device),
            "split_out": ((attention_splits, c.q_dim), np.float32, device),
            "split_sums": ((attention_splits, c.num_attention_heads, 2), np.float32, device),
        }
    if c.linear_layers:
        shapes |= {
            "qkv_raw": ((rows, c.conv_dim), np.float32, device),
            "qkv": ((rows, c.conv_dim), np.float32, device),
            "z": ((rows, c.linear_value_dim), np.float32, device),
            "alpha": ((rows, c.linear_num_value_heads), np.float32, device),
            "beta": ((rows, c.linear_num_value_heads), np.float32, device),
            "gates": ((rows, c.linear_num_value_heads, 2), np.float32, device),
            "delta_out": ((rows, c.linear_value_dim), np.float32, device),
        }
    return shapes


def activation_bytes(config: ModelConfig, rows: int, attention_splits: int) -> int:
    shapes = activation_shapes(config, rows, attention_splits)
    return sum(int(np.prod(shape)) * 4 for shape, _, _ in shapes.values())


def padded_chunk(prefill_chunk: int) -> int:
    return -(-prefill_chunk // ROW_TILE) * ROW_TILE


def memory_bill(
    file: GGUFFile,
    config: ModelConfig,
    *,
    max_context: int,
    kv_type: str,
    prefill_chunk: int,
    attention_splits: int,
) -> MemoryBill:
    """The bill for a model file at this context length and prefill chunk."""
    return MemoryBill(
        weights=weight_bytes(file, config),
        kv_cache=kv_cache_bytes(config, max_context, kv_type),
        state=2 * state_size(config) * 4,  # the live one, and the one that a failed prefill goes back to
        activations=activation_bytes(config, padded_chunk(prefill_chunk), attention_splits),
        staging=UPLOAD_SLICE_BYTES,
    )
