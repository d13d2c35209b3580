"""The memory bill: every byte a model takes on the device, known before anything is allocated; and what fits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from vkprefill.engine.scratch import scratch_bytes
from vkprefill.engine.sizes import KV_TYPES, PAGE, Sizes, check_sizes, num_pages, state_size
from vkprefill.engine.weights import weight_bytes
from vkprefill.errors import OutOfMemoryError, RequestError
from vkprefill.gguf.config import ModelConfig
from vkprefill.gguf.file import GGUFFile
from vkprefill.vulkan.device import UPLOAD_SLICE_BYTES, Device
from vkprefill.vulkan.profiles import Profile


@dataclass(frozen=True)
class MemoryBill:
    """Bytes on the device by kind."""

    weights: int
    kv_cache: int
    state: int
    activations: int
    staging: int

    @property
    def total(self) -> int:
        return self.weights + self.kv_cache + self.state + self.activations + self.staging


def memory_bill(file: GGUFFile, sizes: Sizes) -> MemoryBill:
    """The bill for a model file that is loaded with these sizes."""
    return MemoryBill(
        weights=weight_bytes(file, sizes.config),
        kv_cache=sizes.pages * (4 + sizes.page_bytes),  # with the page table
        state=2 * state_size(sizes.config) * 4,  # the live one, and the one that a failed prefill goes back to
        activations=scratch_bytes(sizes),
        staging=UPLOAD_SLICE_BYTES,
    )


@dataclass(frozen=True)
class LoadOptions:
    """What a caller chooses of a model's sizes; see engine.model.load. RequestError for what cannot be."""

    max_context: int | None = None
    kv_type: str = "f16"
    prefill_chunk: int | None = None
    reserve_bytes: int = 0

    def __post_init__(self) -> None:
        if self.kv_type not in KV_TYPES:
            raise RequestError(f"kv_type: {self.kv_type!r}, wanted one of {', '.join(KV_TYPES)}")
        check_sizes(self.max_context, self.prefill_chunk)


def fit(file: GGUFFile, config: ModelConfig, device: Device, options: LoadOptions) -> Sizes:
    """The sizes to load a model with on a device. Raises OutOfMemoryError where they are more than it has."""
    chunk = options.prefill_chunk or chunk_for(config, device.profile)
    sizes = Sizes(config, device.profile, options.max_context or PAGE, options.kv_type, chunk)
    if options.max_context is None:
        sizes = replace(sizes, max_context=_longest_context(file, sizes, device, options.reserve_bytes))
    most = device.info.max_buffer_bytes // (sizes.page_words * 4) * PAGE
    if sizes.max_context > most:
        limit = device.info.max_buffer_bytes / 2**20
        raise OutOfMemoryError(
            f"context of {sizes.max_context} tokens: {device.info.name} allows {limit:,.0f} MiB in one buffer, "
            f"which is {most} tokens of a layer's keys in {sizes.kv_type}"
        )
    return sizes


def chunk_for(config: ModelConfig, profile: Profile) -> int:
    """The profile's chunk, or less where one dispatch of the largest matrix would pass the bound of a submission."""
    widest = max(config.intermediate_size, config.conv_dim, 2 * config.q_dim)
    most = int(profile.submission_flop / (2.0 * widest * config.hidden_size))
    return max(32, min(profile.prefill_chunk, most // 32 * 32))


def _longest_context(file: GGUFFile, least: Sizes, device: Device, reserve_bytes: int) -> int:
    """The file's context length, or as many pages as fit beside the weights and in one buffer. least: with one page."""
    config, bill = least.config, memory_bill(file, least)
    free = device.available_bytes() * 0.9 - bill.total - reserve_bytes
    pages = min(
        num_pages(config.max_position_embeddings),
        device.info.max_buffer_bytes // (least.page_words * 4),
        int(free // least.page_bytes),
    )
    if pages < 1:
        device.require(bill.total, f"{config.name} with a context of {PAGE} tokens")
        raise OutOfMemoryError(f"{config.name}: no room for a KV cache beside the weights on {device.info.name}")
    return min(config.max_position_embeddings, pages * PAGE)
