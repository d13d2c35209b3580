"""The only list of GGUF tensor names: name -> shape and role; checks a file and its values against it.

Shapes are in numpy order, so a matrix [rows, columns] maps columns inputs to rows outputs. A multi-token-prediction
block may follow the trunk in the same file, or lie in a companion file of its own (gguf/mtp.py).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as TensorType

from vkprefill.display import printable
from vkprefill.errors import GGUFError, UnsupportedModelError
from vkprefill.gguf.config import FULL_ATTENTION, OUTPUT, TOKEN_EMBEDDING, ModelConfig
from vkprefill.gguf.experts import FUSED_EXPERTS
from vkprefill.gguf.file import GGUFFile

Role = Literal["matrix", "experts", "vector"]

MATRIX_TYPES = (
    TensorType.F32,
    TensorType.F16,
    TensorType.BF16,
    TensorType.Q8_0,
    TensorType.Q4_0,
    TensorType.Q4_1,
    TensorType.Q5_0,
    TensorType.Q5_1,
    TensorType.Q2_K,
    TensorType.Q3_K,
    TensorType.Q4_K,
    TensorType.Q5_K,
    TensorType.Q6_K,
    TensorType.IQ4_NL,
    TensorType.IQ4_XS,
    TensorType.MXFP4,
    TensorType.IQ2_XXS,
    TensorType.IQ2_XS,
    TensorType.IQ2_S,
    TensorType.IQ3_XXS,
    TensorType.IQ3_S,
)
# Types without kernels that people have files of -> those with kernels nearest to them in size.
INSTEAD = {
    TensorType.IQ1_S: "IQ2_XXS",
    TensorType.IQ1_M: "IQ2_XXS",
    TensorType.TQ1_0: "IQ2_XXS",
    TensorType.TQ2_0: "IQ2_XXS",
    TensorType.Q1_0: "IQ2_XXS",
    TensorType.NVFP4: "MXFP4 or Q4_K",
}
VECTOR_TYPES = (TensorType.F32, TensorType.F16, TensorType.BF16)

# Byte offsets of the float16 scales and minima in a block; every other byte of a block is an integer.
HALF_OFFSETS = {
    TensorType.Q8_0: (0,),
    TensorType.Q4_0: (0,),
    TensorType.Q4_1: (0, 2),
    TensorType.Q5_0: (0,),
    TensorType.Q5_1: (0, 2),
    TensorType.Q2_K: (80, 82),
    TensorType.Q3_K: (108,),
    TensorType.Q4_K: (0, 2),
    TensorType.Q5_K: (0, 2),
    TensorType.Q6_K: (208,),
    TensorType.IQ4_NL: (0,),
    TensorType.IQ4_XS: (0,),
    TensorType.IQ2_XXS: (0,),
    TensorType.IQ2_XS: (0,),
    TensorType.IQ2_S: (0,),
    TensorType.IQ3_XXS: (0,),
    TensorType.IQ3_S: (0,),
}
# MXFP4's first byte is a power of two, 2^(e - 128), for numbers up to 12. 255 is NaN by the format's definition; from
# 252 on twice the greatest number, which kernels meet on the way, is infinite.
MXFP4_MOST = 251
# All exponent bits set: infinity or NaN. For float16 they lie in the second byte.
HALF_EXPONENT_BYTE = 0x7C
EXPONENT_MASKS = {
    TensorType.F32: (np.dtype("<u4"), 0x7F800000),
    TensorType.F16: (np.dtype("<u2"), 0x7C00),
    TensorType.BF16: (np.dtype("<u2"), 0x7F80),
}


@dataclass(frozen=True)
class TensorSpec:
    """A tensor the model needs. "matrix": any of MATRIX_TYPES; "experts": those of a mixture, one after another;
    "vector": small, read as float32 from VECTOR_TYPES.
    """

    name: str
    shape: tuple[int, ...]
    role: Role


def tensor_specs(config: ModelConfig) -> list[TensorSpec]:
    """Every tensor of the trunk, in the order of the forward pass after the embedding, output norm and output."""
    c = config
    specs = [
        TensorSpec(TOKEN_EMBEDDING, (c.vocab_size, c.hidden_size), "matrix"),
        TensorSpec("output_norm.weight", (c.hidden_size,), "vector"),
    ]
    if not c.tie_word_embeddings:
        specs.append(TensorSpec(OUTPUT, (c.vocab_size, c.hidden_size), "matrix"))
    for layer, kind in enumerate(c.layer_types):
        specs += layer_specs(c, layer, kind)
    return specs


def layer_specs(config: ModelConfig, layer: int, kind: str) -> list[TensorSpec]:
    """The tensors of block `layer`, which is of layer type `kind`."""
    c = config
    mixer: dict[str, tuple[int, ...]]
    if kind == FULL_ATTENTION:
        mixer = {
            "attn_q.weight": (2 * c.q_dim, c.hidden_size),  # per head: query, then gate
            "attn_k.weight": (c.kv_dim, c.hidden_size),
            "attn_v.weight": (c.kv_dim, c.hidden_size),
            "attn_output.weight": (c.hidden_size, c.q_dim),
            "attn_q_norm.weight": (c.head_dim,),
            "attn_k_norm.weight": (c.head_dim,),
        }
    else:
        mixer = {
            "attn_qkv.weight": (c.conv_dim, c.hidden_size),
            "attn_gate.weight": (c.linear_value_dim, c.hidden_size),
            "ssm_conv1d.weight": (c.conv_dim, c.linear_conv_kernel_dim),
            "ssm_dt.bias": (c.linear_num_value_heads,),
            "ssm_a": (c.linear_num_value_heads,),
            "ssm_beta.weight": (c.linear_num_value_heads, c.hidden_size),
            "ssm_alpha.weight": (c.linear_num_value_heads, c.hidden_size),
            "ssm_norm.weight": (c.linear_value_head_dim,),
            "ssm_out.weight": (c.hidden_size, c.linear_value_dim),
        }
    shapes = {
        "attn_norm.weight": (c.hidden_size,),
        "post_attention_norm.weight": (c.hidden_size,),
        **mixer,
        **_feed_forward(c, layer),
    }
    return [TensorSpec(f"blk.{layer}.{name}", shape, _role(name, shape)) for name, shape in shapes.items()]


def _feed_forward(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a block's feed-forward part: one for all tokens, or experts beside it."""
    experts, hidden = config.experts, config.hidden_size
    shared = "_shexp" if experts else ""
    shapes: dict[str, tuple[int, ...]] = {
        f"ffn_gate{shared}.weight": (config.intermediate_size, hidden),
        f"ffn_up{shared}.weight": (config.intermediate_size, hidden),
        f"ffn_down{shared}.weight": (hidden, config.intermediate_size),
    }
    if experts is None:
        return shapes
    count, size = experts.count, experts.sizes[layer]
    if layer in experts.fused:  # of each expert the rows of gate, then those of up
        shapes[FUSED_EXPERTS] = (count, 2 * size, hidden)
    else:
        shapes |= {f"ffn_{name}_exps.weight": (count, size, hidden) for name in ("gate", "up")}
    return shapes | {
        "ffn_down_exps.weight": (count, hidden, size),
        "ffn_gate_inp.weight": (count, hidden),
        "ffn_gate_inp_shexp.weight": (hidden,),
    }


def _role(name: str, shape: tuple[int, ...]) -> Role:
    if len(shape) == 3:
        return "experts"
    return "vector" if len(shape) == 1 or name == "ssm_conv1d.weight" else "matrix"


def is_mtp_tensor(config: ModelConfig, name: str) -> bool:
    """Whether a tensor belongs to a multi-token-prediction block, which comes after the trunk."""
    block = re.match(r"blk\.(\d{1,9})\.", name, re.ASCII)
    first = config.num_hidden_layers
    return block is not None and first <= int(block[1]) < first + config.num_nextn_layers


def mtp_specs(config: ModelConfig, layer: int) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """(needed, optional) tensors of the multi-token-prediction block `layer`: an attention block and what leads in and
    out of it. Where an optional one is missing, the trunk's own does its work.
    """
    c = config
    needed = {
        "nextn.eh_proj.weight": (c.hidden_size, 2 * c.hidden_size),  # columns: of the embedding, then of the hidden row
        "nextn.enorm.weight": (c.hidden_size,),
        "nextn.hnorm.weight": (c.hidden_size,),
    }
    optional = {
        "nextn.shared_head_norm.weight": (c.hidden_size,),
        "nextn.embed_tokens.weight": (c.vocab_size, c.hidden_size),
        "nextn.shared_head_head.weight": (c.vocab_size, c.hidden_size),
    }

    def specs(shapes: dict[str, tuple[int, ...]]) -> list[TensorSpec]:
        return [TensorSpec(f"blk.{layer}.{name}", shape, _role(name, shape)) for name, shape in shapes.items()]

    return layer_specs(c, layer, FULL_ATTENTION) + specs(needed), specs(optional)


def check_tensors(file: GGUFFile, config: ModelConfig) -> None:
    """Check that a file holds the trunk's tensors and nothing unknown, in the right shapes and in known types.

    Raises GGUFError for missing tensors and wrong shapes, UnsupportedModelError for types the kernels cannot read and
    for tensors of no known use: to leave out a bias or a scale would give wrong output without a word.
    """
    specs = tensor_specs(config)
    check_specs(file, specs)
    known = {spec.name for spec in specs}
    for name in file.tensors:
        if name not in known and not is_mtp_tensor(config, name):
            raise UnsupportedModelError(
                f"{file.label}: {printable(name)}: unknown tensor, not part of a {config.architecture} model"
            )


def check_specs(file: GGUFFile, specs: Iterable[TensorSpec]) -> None:
    """Raises GGUFError for missing tensors and wrong shapes, UnsupportedModelError for types that no kernel reads."""
    for spec in specs:
        if spec.name not in file.tensors:
            raise GGUFError(f"{file.label}: {spec.name}: missing tensor, wanted shape {list(spec.shape)}")
        info = file.tensors[spec.name]
        if _less_ones(info.shape) != _less_ones(spec.shape):
            raise GGUFError(f"{file.label}: {spec.name}: shape {list(info.shape)}, wanted {list(spec.shape)}")
        supported = VECTOR_TYPES if spec.role == "vector" else MATRIX_TYPES
        if info.type not in supported:
            instead = f"; take a file with {INSTEAD[info.type]}" if info.type in INSTEAD else ""
            raise UnsupportedModelError(
                f"{file.label}: {spec.name}: type {info.type.name} is not supported"
                f" (supported: {' '.join(t.name for t in supported)}){instead}"
            )


def _less_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without leading sizes of one, which a writer may have kept of a vector or left out: the same numbers."""
    return shape if shape[:1] != (1,) else _less_ones(shape[1:])


def first_non_finite(rows: np.ndarray, tensor_type: TensorType) -> int | None:
    """Index of the first row with a NaN or an infinity, None when there is none.

    `rows` is uint8 [rows, row_bytes] as GGUFFile.data gives it, of one of MATRIX_TYPES. Of a quantised block only the
    scales and minima are looked at: where these are finite every weight is.
    """
    if tensor_type in EXPONENT_MASKS:
        dtype, mask = EXPONENT_MASKS[tensor_type]
        bad_rows = ((rows.view(dtype) & mask) == mask).any(axis=1)
    elif tensor_type == TensorType.MXFP4:
        bad_rows = (rows[:, :: GGML_QUANT_SIZES[tensor_type][1]] > MXFP4_MOST).any(axis=1)
    else:
        block_bytes = GGML_QUANT_SIZES[tensor_type][1]
        blocks = rows.reshape(rows.shape[0], -1, block_bytes)
        bad_rows = np.zeros(rows.shape[0], bool)
        for offset in HALF_OFFSETS[tensor_type]:
            exponents = blocks[:, :, offset + 1] & HALF_EXPONENT_BYTE
            bad_rows |= (exponents == HALF_EXPONENT_BYTE).any(axis=1)
    return int(bad_rows.argmax()) if bad_rows.any() else None


def check_finite(file: GGUFFile, name: str, first_row: int = 0, num_rows: int | None = None) -> None:
    """Check rows [first_row, first_row + num_rows) of a tensor; without `num_rows` all from first_row.

    Raises GGUFError naming the tensor and the row.
    """
    stop = None if num_rows is None else first_row + num_rows
    bad = first_non_finite(file.data(name)[first_row:stop], file.info(name).type)
    if bad is not None:
        where = "holds" if file.info(name).num_rows == 1 else f"row {first_row + bad} holds"
        raise GGUFError(f"{file.label}: {name}: {where} NaN or infinity, wanted finite values")


def read_vector(file: GGUFFile, spec: TensorSpec) -> np.ndarray:
    """A vector as float32 in `spec.shape`. Raises GGUFError when it holds NaN or infinity."""
    check_finite(file, spec.name)
    return file.dequantize(spec.name).reshape(spec.shape)
