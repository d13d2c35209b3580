"""vkprefill inspect: what a file is, whether it can be used, and what it will take of a device's memory."""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict

from vkprefill.cli.common import add_model_options, kv_type, model_path
from vkprefill.cli.parser import MODEL, group_of
from vkprefill.engine.halves import takes_halves
from vkprefill.engine.memory import check_context, chunk_for, chunk_in_buffers, memory_bill, wanted_chunk
from vkprefill.engine.row_store import store_bytes
from vkprefill.engine.sizes import Sizes
from vkprefill.errors import DeviceError
from vkprefill.gguf.config import ModelConfig
from vkprefill.gguf.file import GGUFFile, open_gguf
from vkprefill.gguf.mtp import find_block
from vkprefill.gguf.tensors import TensorSpec, check_tensors, tensor_specs
from vkprefill.text.chat_template import ChatTemplate
from vkprefill.text.tokenizer import Tokenizer
from vkprefill.vulkan.companion import abilities
from vkprefill.vulkan.probe import DeviceInfo, choose
from vkprefill.vulkan.profiles import LARGEST, Profile, profile_for


def register(subcommands: argparse._SubParsersAction) -> None:
    parser = subcommands.add_parser(
        "inspect",
        help="print a model's configuration and memory bill",
        description="Print a model's configuration and its memory bill on the device that would run it. All checks of "
        "the file are made that loading makes. The device is only asked what it is; without one the bill "
        "has the largest steps that any device takes.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_model_options(parser)
    group_of(parser, MODEL).add_argument(
        "-md",
        "--model-draft",
        metavar="FILE",
        help="a file with the model's multi-token-prediction block, for the bill",
    )
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    file = open_gguf(model_path(args))
    config = ModelConfig.from_gguf(file)
    check_tensors(file, config)
    check_text(file, config)
    info, profile = device_and_profile(args)
    device = info.name if info else None
    context = config.max_position_embeddings if args.ctx_size is None else args.ctx_size
    chunk = args.batch_size or (chunk_for if device else wanted_chunk)(config, profile)
    half = takes_halves(args.precision, info is None or abilities(info.index).has_dot2)
    precision = "half" if half else "full"
    block = find_block(file, config, "auto" if args.model_draft is None else args.model_draft)
    sizes = Sizes(config, profile, context, kv_type(args), chunk, half, block)
    if info and not args.batch_size:
        sizes = chunk_in_buffers(sizes, info.max_buffer_bytes)
    if info and args.ctx_size is not None:
        check_context(sizes, info)
    bill = memory_bill(file, sizes)
    types, type_bytes = types_of(file, tensor_specs(config))
    parameters = sum(math.prod(spec.shape) for spec in tensor_specs(config))
    mtp = None
    if block:
        mtp_types, mtp_bytes = types_of(block.file, block.specs)
        mtp_parameters = sum(math.prod(spec.shape) for spec in block.specs)
        mtp = {"layer": block.layer, "parameters": mtp_parameters, "types": mtp_types, "type_bytes": mtp_bytes}
    prompt_rows = store_bytes(context, config.hidden_size)
    if args.json:
        print(
            json.dumps(
                {
                    "path": str(file.path),
                    "file_bytes": file.size_bytes,
                    "parameters": parameters,
                    "types": types,
                    "type_bytes": type_bytes,
                    "mtp": mtp,
                    "config": asdict(config),
                    "max_context": context,
                    "prefill_chunk": sizes.prefill_chunk,
                    "precision": precision,
                    "device": device,
                    "memory": {**asdict(bill), "total": bill.total},
                    "state_copy": bill.state_copy,
                    "prompt_rows": prompt_rows,
                }
            )
        )
        return 0
    print(f"{file.path}: {config.name}, {parameters / 1e6:,.2f} M parameters, {file.size_bytes / 2**20:,.2f} MiB")
    print(f"tensors by share of bytes (their number): {listed(types, type_bytes)}")
    if mtp:
        print(
            f"multi-token-prediction block: blk.{mtp['layer']}, {mtp['parameters'] / 1e6:,.2f} M parameters more, "
            f"tensors: {listed(mtp_types, mtp_bytes)}"
        )
    else:
        print("multi-token-prediction block: none")
    for name, value in asdict(config).items():
        if name == "layer_types":
            attention = config.attention_layers
            value = f"{len(config.linear_layers)} linear_attention, {len(attention)} full_attention {attention}"
        elif name == "experts" and config.experts:
            value = str(config.experts)
        print(f"  {name:24} {value}")
    print(
        f"memory for a context of {context} tokens, KV cache {kv_type(args)}, prefill in steps of "
        f"{sizes.prefill_chunk} tokens, precision {precision} "
        f"({f'on {device}' if device else 'no Vulkan device here: the most that any takes'}):"
    )
    for name, num_bytes in {**asdict(bill), "total": bill.total}.items():
        print(f"  {name:24} {num_bytes / 2**20:12,.2f} MiB")
    print(f"of this {bill.on_host / 2**20:,.2f} MiB are shared with the CPU (exchange, staging)")
    print(
        f"not in it: {bill.state_copy / 2**20:,.2f} MiB for each snapshot and each further cache in use; rows "
        f"of captures, recordings and scoring a prompt; {prompt_rows / 2**20:,.2f} MiB for a prompt of the whole "
        "context that the model scores itself (--specprefill-scorer self); logits of all tokens"
    )
    return 0


def check_text(file: GGUFFile, config: ModelConfig) -> None:
    """Raises VkPrefillError for a tokenizer or a chat template that cannot be used."""
    tokenizer = Tokenizer.from_metadata(file.metadata, config.vocab_size)
    template = ChatTemplate.from_metadata(file.metadata, tokenizer)
    if template is not None:
        template.encode([{"role": "user", "content": "Hello"}])


def device_and_profile(args: argparse.Namespace) -> tuple[DeviceInfo | None, Profile]:
    """The device that would be used, and its profile; without a device that of the largest bill."""
    try:
        info = choose(args.device)
    except DeviceError:
        if args.device is not None:
            raise
        return None, LARGEST
    return info, profile_for(info)


def types_of(file: GGUFFile, specs: Iterable[TensorSpec]) -> tuple[Counter[str], Counter[str]]:
    """(tensors, bytes in the file) of each type."""
    count, num_bytes = Counter(), Counter()
    for info in (file.info(spec.name) for spec in specs):
        count[info.type.name] += 1
        num_bytes[info.type.name] += info.num_bytes
    return count, num_bytes


def listed(count: Counter[str], num_bytes: Counter[str]) -> str:
    """The types by their share of bytes, greatest first."""
    total = num_bytes.total()
    return ", ".join(f"{name} {size / total:.1%} ({count[name]})" for name, size in num_bytes.most_common())
