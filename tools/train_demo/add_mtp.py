"""Writes a trained multi-token-prediction block into the target's file, as its last block.

    python add_mtp.py mtp.pt ../../vkprefill/data/target.gguf

Matrices become Q8_0, vectors stay float32. All other tensors keep their bytes, all other metadata their values; a block
that the file has already is replaced.
"""

import argparse
from pathlib import Path

import gguf
import numpy as np

MATRIX = gguf.GGMLQuantizationType.Q8_0
BLOCK_COUNT, MTP_LAYERS = "qwen35.block_count", "qwen35.nextn_predict_layers"
OF_WRITER = ("general.architecture", BLOCK_COUNT, MTP_LAYERS)


def tensor_name(name: str, layer: int) -> str:
    """A weight of mtp.MtpBlock by its name in the file."""
    inner = name.removeprefix("layer.").replace("mixer.", "") if name.startswith("layer.") else f"nextn.{name}"
    return f"blk.{layer}.{inner}"


def add_block(weights: dict[str, np.ndarray], path: Path) -> None:
    reader, written = gguf.GGUFReader(path), path.with_suffix(".new")
    had = reader.fields[MTP_LAYERS].contents() if MTP_LAYERS in reader.fields else 0
    layer = int(reader.fields[BLOCK_COUNT].contents() - had)
    writer = gguf.GGUFWriter(written, "qwen35")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key not in OF_WRITER:
            inner = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(key, field.contents(), field.types[0], inner)
    writer.add_block_count(layer + 1)
    writer.add_uint32(MTP_LAYERS, 1)
    for tensor in reader.tensors:
        if not tensor.name.startswith(f"blk.{layer}."):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for name, weight in weights.items():
        if weight.ndim == 1:
            writer.add_tensor(tensor_name(name, layer), weight)
        else:
            writer.add_tensor(tensor_name(name, layer), gguf.quants.quantize(weight, MATRIX), raw_dtype=MATRIX)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    written.replace(path)
    print(path, path.stat().st_size, "bytes")


def main() -> None:
    import torch  # add_block needs none

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("file", type=Path, help="the target's, written anew")
    args = parser.parse_args()
    add_block({name: weight.float().numpy() for name, weight in torch.load(args.checkpoint).items()}, args.file)


if __name__ == "__main__":
    main()
