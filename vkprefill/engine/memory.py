"""The memory bill: every byte a model takes on the device, known before anything is allocated; and what fits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral

from vkprefill.checks import check_number
from vkprefill.engine.halves import PRECISIONS, takes_halves, tell_of_detour
from vkprefill.engine.kept_rows import kept_size
from vkprefill.engine.scratch import scratch_bytes, scratch_shapes
from vkprefill.engine.sizes import (
    KV_TYPES,
    MAX_CONTEXT,
    PAGE,
    Sizes,
    check_sizes,
    layer_states_size,
    num_pages,
)
from vkprefill.engine.weights import weight_bytes
from vkprefill.errors import OutOfMemoryError, RequestError
from vkprefill.gguf.config import ModelConfig
from vkprefill.gguf.file import GGUFFile
from vkprefill.gguf.mtp import MTPBlock
from vkprefill.gguf.tensors import tensor_specs
from vkprefill.vulkan.device import UPLOAD_SLICE_BYTES, Device
from vkprefill.vulkan.probe import DeviceInfo
from vkprefill.vulkan.profiles import Profile

CHUNK_STEP = 256  # tokens that a chunk is made shorter by
MIXTURE_CHUNK = 2048  # tokens of a step of a mixture: 64 for each of 256 experts, where a token takes 8


@dataclass(frozen=True)
class MemoryBill:
    """Bytes by kind that loading a model takes, and running it: the whole KV cache, the live recurrent state with the
    one that a failed prefill goes back to, the rows of decode that are not yet part of it.

    mtp: of the multi-token-prediction block, its weights, keys and values, and what its rows are worked out in.
    points: vectors that steer all of its runs; in the bill of a recording (ActivationCache.memory) the rows that it
    reads, too, and those that its edits write.
    exchange, staging and points are "host" memory, which the CPU sees too (tokens, page table, logits; the slice for
    uploads); all else is the device's own. Not in the bill, and checked when it is asked for: a copy of the state
    (state_copy bytes) for each snapshot, mark of a prompt cache and further cache in use; the rows of an attention
    capture, and what it keeps of tokens for those of delta-net layers; the rows of scoring a prompt; the rows between
    the layers of a prompt that the model scores itself (row_store.store_bytes); the logits of all tokens
    (Model.logits).
    """

    weights: int
    kv_cache: int
    state: int
    kept_rows: int
    activations: int
    mtp: int
    exchange: int
    staging: int
    points: int = 0

    @property
    def on_device(self) -> int:
        return self.weights + self.kv_cache + self.state + self.kept_rows + self.activations + self.mtp

    @property
    def on_host(self) -> int:
        return self.exchange + self.staging + self.points

    @property
    def total(self) -> int:
        return self.on_device + self.on_host

    @property
    def state_copy(self) -> int:
        return self.state // 2


def other_states_bytes(config: ModelConfig, turns: int) -> int:
    """Bytes of the states that wait where so many caches take turns."""
    return (turns - 1) * (layer_states_size(config) + config.hidden_size) * 4


def memory_bill(file: GGUFFile, sizes: Sizes) -> MemoryBill:
    """The bill for a model file that is loaded with these sizes."""
    block, mtp = sizes.block, scratch_bytes(sizes, "mtp")
    if block is not None:
        mtp += weight_bytes(block.file, block.specs) + sizes.pages * sizes.layer_page_bytes
    return MemoryBill(
        weights=weight_bytes(file, tensor_specs(sizes.config)),
        kv_cache=sizes.pages * sizes.layer_page_bytes * len(sizes.config.attention_layers),
        state=2 * sizes.state_size * 4,  # the live one, and the one that a failed prefill goes back to
        kept_rows=kept_size(sizes) * 4,
        activations=scratch_bytes(sizes, "device"),
        mtp=mtp,
        exchange=scratch_bytes(sizes, "host") + sizes.pages * 4 * (2 if block else 1),  # page tables
        staging=UPLOAD_SLICE_BYTES,
    )


@dataclass(frozen=True)
class LoadOptions:
    """What a caller chooses of a model's sizes; see engine.model.load. RequestError for what cannot be."""

    max_context: int | None = None
    kv_type: str = "f16"
    prefill_chunk: int | None = None
    reserve_bytes: int = 0
    precision: str = "auto"
    mtp_window: int | None = None

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise RequestError(f"precision: {self.precision!r}, wanted one of {', '.join(PRECISIONS)}")
        if self.kv_type not in KV_TYPES:
            raise RequestError(f"kv_type: {self.kv_type!r}, wanted one of {', '.join(KV_TYPES)}")
        check_sizes(self.max_context, self.prefill_chunk)
        check_number("reserve_bytes", self.reserve_bytes, Integral, 0, 2**63 - 1)
        if self.mtp_window is not None:
            check_number("mtp_window", self.mtp_window, Integral, 1, MAX_CONTEXT)


def fit(
    file: GGUFFile, config: ModelConfig, device: Device, options: LoadOptions, block: MTPBlock | None = None
) -> Sizes:
    """The sizes to load a model with on a device, with this multi-token-prediction block. Raises OutOfMemoryError where
    they are more than it has.
    """
    chunk = options.prefill_chunk or chunk_for(config, device.profile)
    has_dot2 = device.abilities.has_dot2
    half = takes_halves(options.precision, has_dot2)
    if half and not has_dot2:
        tell_of_detour(device.info.name)
    sizes = Sizes(config, device.profile, options.max_context or PAGE, options.kv_type, chunk, half, block)
    if options.prefill_chunk is None:
        sizes = _chunk_that_fits(file, sizes, device, options.reserve_bytes)
    if options.max_context is None:
        sizes = replace(sizes, max_context=_longest_context(file, sizes, device, options.reserve_bytes))
    elif options.reserve_bytes:
        device.require(options.reserve_bytes, "reserve_bytes")
    check_context(sizes, device.info)
    return sizes


def check_context(sizes: Sizes, info: DeviceInfo) -> None:
    """OutOfMemoryError for a context whose keys of one layer are more than the device allows in one buffer."""
    most = info.max_buffer_bytes // (sizes.page_words * 4) * PAGE
    if sizes.max_context > most:
        raise OutOfMemoryError(
            f"context of {sizes.max_context} tokens: {info.name} allows {info.max_buffer_bytes / 2**20:,.0f} MiB "
            f"in one buffer, which is {most} tokens of a layer's keys in {sizes.kv_type}"
        )


def wanted_chunk(config: ModelConfig, profile: Profile) -> int:
    """Tokens of a step where nothing is in the way. An expert of a mixture has a few of them only, and its weights are
    read for those: more at a time pay.
    """
    return max(profile.prefill_chunk, MIXTURE_CHUNK) if config.experts else profile.prefill_chunk


def chunk_for(config: ModelConfig, profile: Profile) -> int:
    """The wanted chunk, or less where one dispatch of the largest matrix would pass the bound of a submission; those of
    mixtures are cut into several.
    """
    wanted = wanted_chunk(config, profile)
    if config.experts:
        return wanted
    widest = max(config.intermediate_size, config.conv_dim, 2 * config.q_dim)
    most = int(profile.submission_flop / (2.0 * widest * config.hidden_size))
    return max(32, min(wanted, most // 32 * 32))


def chunk_in_buffers(sizes: Sizes, max_buffer_bytes: int) -> Sizes:
    """The sizes with a chunk whose activations are nowhere more than a device allows in one buffer."""
    return _shorter(sizes, lambda s: 4 * max(math.prod(x[0]) for x in scratch_shapes(s).values()) <= max_buffer_bytes)


def _chunk_that_fits(file: GGUFFile, sizes: Sizes, device: Device, reserve_bytes: int) -> Sizes:
    """The sizes with a chunk that fits buffers, and whose activations are at most half of what weights leave."""

    def fits(sizes: Sizes) -> bool:
        bill = memory_bill(file, sizes)
        return bill.total + bill.activations + reserve_bytes <= device.available_bytes() * 0.9

    return _shorter(chunk_in_buffers(sizes, device.info.max_buffer_bytes), fits)


def _shorter(sizes: Sizes, fits: Callable[[Sizes], bool]) -> Sizes:
    """With a chunk as much shorter as it takes, down to that of dense models."""
    least = sizes.profile.prefill_chunk
    while sizes.prefill_chunk > least and not fits(sizes):
        sizes = replace(sizes, prefill_chunk=max(least, sizes.prefill_chunk - CHUNK_STEP))
    return sizes


def _longest_context(file: GGUFFile, least: Sizes, device: Device, reserve_bytes: int) -> int:
    """The file's context length, or as many pages as fit beside the weights and in one buffer. least: with one page."""
    config, bill = least.config, memory_bill(file, least)
    device.require(bill.on_device, f"{config.name} with a context of {PAGE} tokens", host_bytes=bill.on_host)
    available, needed = device.available_bytes() * 0.9, bill.total if device.info.one_memory else bill.on_device
    pages = min(
        num_pages(config.max_position_embeddings),
        device.info.max_buffer_bytes // (least.page_words * 4),
        int((available - needed - reserve_bytes) // least.page_bytes),
    )
    if pages < 1:
        raise OutOfMemoryError(
            f"{config.name}: no room for a KV cache: {needed / 2**20:,.0f} MiB without it, "
            f"{reserve_bytes / 2**20:,.0f} MiB kept for a draft, of {available / 2**20:,.0f} MiB on {device.info.name}"
        )
    return min(config.max_position_embeddings, pages * PAGE)
