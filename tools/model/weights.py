"""Random weights of any type, blocks of the quantised ones included.

A quantised tensor is random bytes with scales chosen for a given standard deviation: every block is valid and nothing
is lost to a quantiser. Standard deviations keep the residual stream near 1 and spread the logits by about 3.
"""

import functools
import math

import gguf
import numpy as np
from gguf import GGMLQuantizationType as TensorType

from tools.model.mixes import kind_of
from vkprefill.gguf.config import ModelConfig
from vkprefill.gguf.tensors import TensorSpec

# Float16 fields of a block: byte offset -> value for a scale of 1. The minima centre the unsigned quants on zero.
BLOCK_FIELDS = {
    TensorType.Q8_0: {0: 1.0},
    TensorType.Q4_0: {0: 1.0},
    TensorType.Q4_1: {0: 1.0, 2: -7.5},
    TensorType.Q5_0: {0: 1.0},
    TensorType.Q5_1: {0: 1.0, 2: -15.5},
    TensorType.Q2_K: {80: 1.0, 82: 1.5},
    TensorType.Q3_K: {108: 1.0},
    TensorType.Q4_K: {0: 1.0, 2: 7.5},
    TensorType.Q5_K: {0: 1.0, 2: 15.5},
    TensorType.Q6_K: {208: 1.0},
    TensorType.IQ4_NL: {0: 1.0},
    TensorType.IQ4_XS: {0: 1.0},
    TensorType.IQ2_XXS: {0: 1.0},
    TensorType.IQ2_XS: {0: 1.0},
    TensorType.IQ2_S: {0: 1.0},
    TensorType.IQ3_XXS: {0: 1.0},
    TensorType.IQ3_S: {0: 1.0},
}


def random_tensor(
    rng: np.random.Generator, spec: TensorSpec, tensor_type: TensorType, config: ModelConfig
) -> np.ndarray:
    """A tensor as the file holds it: uint8 [rows, row_bytes], or [rows, columns] of its float type (bf16: uint16)."""
    kind = kind_of(spec)
    if kind == "ssm_a":  # the file holds -exp(A_log)
        return -np.exp(rng.uniform(-2, 1.5, spec.shape)).astype(np.float32)
    if kind == "ssm_dt":
        return rng.uniform(-5, 0.5, spec.shape).astype(np.float32)
    normal = functools.partial(rng.standard_normal, spec.shape, np.float32)
    if kind == "ssm_conv1d":
        return np.float32(0.6) * normal()
    if spec.role == "vector":
        mean = 1.3 if kind in ("attn_q_norm", "attn_k_norm") else 1.0
        return np.float32(mean) + np.float32(0.2) * normal()
    std = np.float32(_matrix_std(kind, spec.shape, config))
    if tensor_type == TensorType.F32:
        return std * normal()
    if tensor_type == TensorType.F16:
        return (std * normal()).astype(np.float16)
    if tensor_type == TensorType.BF16:
        return ((std * normal()).view(np.uint32) >> 16).astype(np.uint16)
    rows = math.prod(spec.shape[:-1])
    block_size = gguf.GGML_QUANT_SIZES[tensor_type][0]
    num_blocks = rows * spec.shape[-1] // block_size
    return random_blocks(rng, num_blocks, tensor_type, std / _unit_std(tensor_type)).reshape(rows, -1)


def _matrix_std(kind: str, shape: tuple[int, ...], config: ModelConfig) -> float:
    if kind == "output" or (kind == "token_embd" and config.tie_word_embeddings):
        return 2.5 / math.sqrt(config.hidden_size)
    if kind == "token_embd":
        return 1.0
    return {"attn_output": 1.5, "ffn_down": 1.2}.get(kind, 1.0) / math.sqrt(shape[-1])


def random_blocks(rng: np.random.Generator, num_blocks: int, tensor_type: TensorType, scale: float) -> np.ndarray:
    """uint8 [num_blocks, block_bytes]: random quants, scales of `scale` times 0.5 to 1.5."""
    block_bytes = gguf.GGML_QUANT_SIZES[tensor_type][1]
    num_bytes = num_blocks * block_bytes
    words = rng.integers(0, 1 << 64, -(-num_bytes // 8), np.uint64)
    blocks = words.view(np.uint8)[:num_bytes].reshape(num_blocks, block_bytes)
    scales = rng.uniform(0.5, 1.5, num_blocks) * scale
    if tensor_type == TensorType.MXFP4:  # its scales are powers of two
        blocks[:, 0] = np.rint(np.log2(scales)) + 128
        return blocks
    for offset, factor in BLOCK_FIELDS[tensor_type].items():
        halves = (scales * factor).astype("<f2")
        blocks[:, offset : offset + 2] = halves.view(np.uint8).reshape(num_blocks, 2)
    return blocks


@functools.cache
def _unit_std(tensor_type: TensorType) -> float:
    """Standard deviation of the weights of random blocks of scale 1, measured."""
    blocks = random_blocks(np.random.default_rng(0), 2048, tensor_type, 1.0)
    return float(gguf.quants.dequantize(blocks, tensor_type).std())
