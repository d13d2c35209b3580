"""Sizes of everything a model keeps on the device, from its configuration and how it is loaded.

The memory bill and the allocations are made from these same numbers, so they cannot drift apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral

from vkprefill.errors import RequestError
from vkprefill.gguf.config import ModelConfig
from vkprefill.gguf.mtp import MTPBlock
from vkprefill.rounding import ceil_div, round_up
from vkprefill.vulkan.profiles import Profile

PAGE = 256  # slots of a page of the KV cache, as in shaders/include/kv.glsl
KV_TYPES = ("f16", "f32")
MAX_CANDIDATES = 64  # that the device can deliver for sampling
NO_TOKEN = 2**32 - 1  # in place of a candidate that is not there (shaders/drafts/matvec_rows.comp)
MAX_DRAFTS = 7  # of a round: with the token before them as many rows as keep the order of sums of one
DRAFT_CANDIDATES = 10  # best tokens of a draft row, whose probabilities are taken among them
HEAD_ROWS = 65536  # of the vocabulary's first tokens, that a draft may be unless told otherwise
MAX_DRAFT_IDS = 1024  # tokens that a draft may be beside the first of the vocabulary
MAX_CONTEXT, MAX_CHUNK = 1 << 30, 4096
# The weights of a mixture's experts are read anew for each run. Four times the 0.1 s that a submission takes, or the
# 0.25 s on a device that was not timed, is still below the 2 s after which drivers reset a GPU.
MIXTURE_BOUNDS = 4
ROW_TILE = 32  # activations are padded to whole tiles: a multiple of the rows that matmul and attention read together


def check_sizes(
    max_context: int | None, prefill_chunk: int | None, names: tuple[str, str] = ("max_context", "prefill_chunk")
) -> None:
    """Raise RequestError for sizes that no model is loaded with; None: to be chosen; names: of the two in the error."""
    for name, value, most in zip(names, (max_context, prefill_chunk), (MAX_CONTEXT, MAX_CHUNK), strict=True):
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        if value is not None and not (whole and 1 <= value <= most):
            raise RequestError(f"{name}: found {value!r}, wanted 1 to {most}")


@dataclass(frozen=True)
class Sizes:
    """What decides how large every buffer of a model is.

    max_context: slots of the KV cache; kv_type: one of KV_TYPES; prefill_chunk: most tokens of a step of prefill; half:
    its products are of halves; block: the multi-token-prediction block that is loaded with the model.
    """

    config: ModelConfig
    profile: Profile
    max_context: int
    kv_type: str
    prefill_chunk: int
    half: bool = False
    block: MTPBlock | None = None

    @property
    def rows(self) -> int:
        """Rows of the activations: the tokens of a step, rounded up to whole tiles."""
        return round_up(self.prefill_chunk, ROW_TILE)

    @property
    def pages(self) -> int:
        return num_pages(self.max_context)

    @property
    def page_words(self) -> int:
        """32-bit words of the keys (or the values) of one page of one layer."""
        return PAGE * self.config.kv_dim // (2 if self.kv_type == "f16" else 1)

    @property
    def kv_layers(self) -> tuple[int, ...]:
        """Layers with keys and values: the full-attention layers, and the multi-token-prediction block."""
        return self.config.attention_layers + ((self.block.layer,) if self.block else ())

    @property
    def layer_page_bytes(self) -> int:
        """Keys and values of one page in one layer."""
        return 2 * self.page_words * 4

    @property
    def page_bytes(self) -> int:
        """Keys and values of one page in all layers that have them."""
        return len(self.kv_layers) * self.layer_page_bytes

    @property
    def state_size(self) -> int:
        """Floats of the live state: for each delta-net layer the convolution state, then the recurrent state; with a
        multi-token-prediction block, the hidden row that waits for its next token.
        """
        return max(4, layer_states_size(self.config) + (self.config.hidden_size if self.block else 0))


def most_tokens(config: ModelConfig, profile: Profile, cache_len: int) -> int:
    """Of a run after so many, so that the attention of one layer stays below the bound of a submission, in mixtures
    below MIXTURE_BOUNDS of them.
    """
    bound = profile.submission_flop * (MIXTURE_BOUNDS if config.experts else 1)
    pairs = bound / (4.0 * config.q_dim)  # of a token with a key, of which there are most (cache_len + most)
    return max(1, int((math.sqrt(cache_len**2 + 4 * pairs) - cache_len) / 2))


def num_pages(max_context: int) -> int:
    return ceil_div(max_context, PAGE)


def conv_state_size(config: ModelConfig) -> int:
    """Floats of one layer's convolution state, rounded up to a word of 4."""
    return round_up((config.linear_conv_kernel_dim - 1) * config.conv_dim, 4)


def recurrent_state_size(config: ModelConfig) -> int:
    """Floats of one layer's delta-rule state [Hv, Dv, Dk]."""
    return config.linear_num_value_heads * config.linear_value_head_dim * config.linear_key_head_dim


def layer_states_size(config: ModelConfig) -> int:
    """Floats of the states of all delta-net layers."""
    return len(config.linear_layers) * (conv_state_size(config) + recurrent_state_size(config))
