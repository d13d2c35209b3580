"""Which type each tensor of a model has: one for all matrices, or a named recipe."""

import re

import gguf
from gguf import GGMLQuantizationType as TensorType

from vkprefill.gguf.config import ModelConfig
from vkprefill.gguf.tensors import MATRIX_TYPES, TensorSpec

# One type for every matrix, or a named recipe (see _recipe_type).
ONE_TYPE_MIXES = {t.name.lower(): t for t in MATRIX_TYPES}
MIXES = (*ONE_TYPE_MIXES, "q4_k_m", "q4_k_m_2026_10", "q8mix", "mixed", "small")
FILE_TYPES = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}  # general.file_type; Q4_K_M for the others
FILE_TYPE_Q4_K_M = 15

ROUTER = "ffn_gate_inp"  # of a mixture: never quantised

# Where the block size does not divide a row, as llama-quantize does it.
FALLBACK_TYPES = {
    TensorType.Q4_K: TensorType.Q5_0,
    TensorType.Q5_K: TensorType.Q5_1,
    TensorType.Q6_K: TensorType.Q8_0,
} | {
    kind: TensorType.IQ4_NL
    for kind in MATRIX_TYPES
    if kind.name in ("IQ4_XS", "Q2_K", "Q3_K", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")
}

_Q8MIX_TYPES = {
    "output": TensorType.Q6_K,
    "attn_q": TensorType.Q5_K,
    "attn_k": TensorType.Q8_0,
    "attn_v": TensorType.Q8_0,
    "attn_output": TensorType.Q5_K,
    "attn_qkv": TensorType.Q5_K,
    "attn_gate": TensorType.Q5_K,
    "ssm_out": TensorType.Q8_0,
    "ssm_alpha": TensorType.Q8_0,
    "ssm_beta": TensorType.Q8_0,
    "nextn.eh_proj": TensorType.Q8_0,
}
_MIXED_TYPES = {
    "output": TensorType.Q8_0,
    "attn_q": TensorType.Q5_0,
    "attn_k": TensorType.Q5_1,
    "attn_v": TensorType.BF16,
    "attn_output": TensorType.Q4_0,
    "attn_gate": TensorType.IQ4_XS,
    "ssm_out": TensorType.IQ4_NL,
    "ssm_alpha": TensorType.Q8_0,
    "ssm_beta": TensorType.BF16,
    "ffn_gate": TensorType.Q4_1,
    "ffn_up": TensorType.IQ4_XS,
    "ffn_down": TensorType.Q8_0,
    "nextn.eh_proj": TensorType.Q8_0,
}
_SMALL_TYPES = {
    "token_embd": TensorType.IQ3_S,
    "output": TensorType.Q3_K,
    "attn_q": TensorType.IQ2_XXS,
    "attn_k": TensorType.IQ2_S,
    "attn_v": TensorType.Q2_K,
    "attn_output": TensorType.IQ3_XXS,
    "attn_qkv": TensorType.IQ2_XS,
    "attn_gate": TensorType.IQ2_S,
    "ssm_out": TensorType.MXFP4,
    "ssm_alpha": TensorType.MXFP4,
    "ssm_beta": TensorType.Q8_0,
    "ffn_gate": TensorType.IQ3_XXS,
    "ffn_up": TensorType.IQ2_XXS,
    "ffn_down": TensorType.Q3_K,
}


def kind_of(spec: TensorSpec) -> str:
    """blk.3.attn_q.weight -> attn_q"""
    return re.sub(r"^blk\.\d+\.|\.weight$|\.bias$", "", spec.name)


def tensor_type(spec: TensorSpec, mix: str, config: ModelConfig) -> TensorType:
    """The type that a tensor has in a mix."""
    if spec.role == "vector" or kind_of(spec) == ROUTER:
        return TensorType.F32
    wanted = ONE_TYPE_MIXES[mix] if mix in ONE_TYPE_MIXES else _recipe_type(spec, mix, config)
    while spec.shape[-1] % gguf.GGML_QUANT_SIZES[wanted][0]:
        wanted = FALLBACK_TYPES.get(wanted, TensorType.F16)
    return wanted


def _recipe_type(spec: TensorSpec, mix: str, config: ModelConfig) -> TensorType:
    """The type of a matrix in a recipe.

    q4_k_m is what the released Q4_K_M files of early 2026 have, q4_k_m_2026_10 what llama-quantize makes since October
    2026; q8mix has more Q5_K, Q6_K and Q8_0, as other uploads do; mixed uses as many types as possible,
    small those of fewer than four bits.
    """
    kind = re.sub("_exps$|_shexp$", "", kind_of(spec))
    tied = config.tie_word_embeddings
    block = re.match(r"blk\.(\d+)\.", spec.name)
    layer = int(block[1]) if block else 0
    if mix == "mixed":
        return _MIXED_TYPES.get(kind, TensorType.F16)
    if mix == "small":
        return _SMALL_TYPES.get(kind, TensorType.Q2_K)
    more_bits = _more_bits(layer, config)
    if mix == "q8mix":
        types = {**_Q8MIX_TYPES, "token_embd": TensorType.Q6_K if tied else TensorType.Q5_K}
        types["ffn_down"] = TensorType.Q6_K if more_bits else TensorType.Q5_K
        return types.get(kind, TensorType.Q4_K)
    if kind == "output" or (kind == "token_embd" and tied):
        return TensorType.Q6_K
    if kind == "attn_qkv" and mix == "q4_k_m":
        return TensorType.Q5_K
    if kind == "attn_v" and mix == "q4_k_m":  # early 2026: counted over the attention layers
        more_bits = _more_bits(sum(i < layer for i in config.attention_layers), config)
    return TensorType.Q6_K if more_bits and kind in ("ffn_down", "attn_v", "attn_qkv") else TensorType.Q4_K


def _more_bits(index: int, config: ModelConfig) -> bool:
    """llama-quantize's use_more_bits: the first and last eighth of the blocks, and every third between."""
    count = config.num_hidden_layers + config.num_nextn_layers
    return index < count // 8 or index >= 7 * count // 8 or (index - count // 8) % 3 == 2
