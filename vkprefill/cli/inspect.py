"""vkprefill inspect: what a file is and what it will take, without a GPU."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import asdict

from vkprefill.cli.common import add_model_options, kv_type, model_path
from vkprefill.engine.memory import memory_bill
from vkprefill.engine.sizes import Sizes
from vkprefill.gguf.config import ModelConfig
from vkprefill.gguf.file import open_gguf
from vkprefill.gguf.tensors import check_tensors, tensor_specs
from vkprefill.vulkan.profiles import LARGEST


def register(subcommands: argparse._SubParsersAction) -> None:
    parser = subcommands.add_parser(
        "inspect",
        help="print a model's configuration and memory bill",
        description="Print a model's configuration and memory bill. No GPU is touched.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_model_options(parser, device=False)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    file = open_gguf(model_path(args))
    config = ModelConfig.from_gguf(file)
    check_tensors(file, config)
    context = config.max_position_embeddings if args.ctx_size is None else args.ctx_size
    chunk = LARGEST.prefill_chunk if args.batch_size is None else args.batch_size
    bill = memory_bill(file, Sizes(config, LARGEST, context, kv_type(args), chunk))
    types = Counter(file.info(spec.name).type.name for spec in tensor_specs(config))
    parameters = sum(info_size(file.info(spec.name).shape) for spec in tensor_specs(config))
    if args.json:
        print(
            json.dumps(
                {
                    "path": str(file.path),
                    "file_bytes": file.size_bytes,
                    "parameters": parameters,
                    "types": types,
                    "config": asdict(config),
                    "max_context": context,
                    "memory": {**asdict(bill), "total": bill.total},
                }
            )
        )
        return 0
    print(f"{file.path}: {config.name}, {parameters / 1e6:,.2f} M parameters, {file.size_bytes / 2**20:,.2f} MiB")
    print(
        f"tensors: {', '.join(f'{count} {name}' for name, count in types.most_common())}"
        + (f"; {config.num_nextn_layers} multi-token-prediction block(s) not used" if config.num_nextn_layers else "")
    )
    for name, value in asdict(config).items():
        if name == "layer_types":
            attention = config.attention_layers
            value = f"{len(config.linear_layers)} linear_attention, {len(attention)} full_attention {attention}"
        print(f"  {name:24} {value}")
    print(f"memory for a context of {context} tokens, KV cache {kv_type(args)}, prefill in steps of {chunk} tokens:")
    for name, num_bytes in {**asdict(bill), "total": bill.total}.items():
        print(f"  {name:24} {num_bytes / 2**20:12,.2f} MiB")
    return 0


def info_size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size
