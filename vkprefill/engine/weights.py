"""File -> device: matrices packed and split by rows into parts, experts whole into slabs, vectors as float32.

Slices of rows are checked for NaN and packed by threads (numpy works without the interpreter lock): on a CPU, whose
memory is all one, to where they stay; for a GPU while the slice before is uploaded. What was read of the file does not
stay in this process's memory.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import numpy as np

from vkprefill.engine.expert_matrix import ExpertMatrix, Slab, expert_words, stacks_of
from vkprefill.gguf.config import FULL_ATTENTION, OUTPUT, TOKEN_EMBEDDING, ModelConfig
from vkprefill.gguf.file import GGUFFile
from vkprefill.gguf.grids import grid_words
from vkprefill.gguf.mtp import MTPBlock
from vkprefill.gguf.quants import ROW_GROUP, layout_of, pack_rows, packed_row_bytes, padded_rows
from vkprefill.gguf.tensors import TensorSpec, check_finite, read_vector, tensor_specs
from vkprefill.rounding import round_up
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.device import Device

PART_BYTES = 128 << 20  # of a matrix part: the least maxStorageBufferRange that Vulkan guarantees
POOL_BYTES = 1 << 30  # of a buffer that holds many parts, where the device allows it
VECTOR_ALIGN = 4  # vectors start at a word of 4 floats
SLICE_BYTES = 1 << 20  # packed by one thread at a time: with what numpy makes on the way, it stays in a core's cache

Progress = Callable[[str, int, int], None]
"""progress(stage, done, total): bytes or tokens of a stage."""


@dataclass(frozen=True)
class MatrixPart:
    """Rows [first_row, first_row + rows) of a matrix; buffer: a part of a pool."""

    first_row: int
    rows: int
    buffer: Buffer


@dataclass(frozen=True)
class Matrix:
    """A weight matrix [rows, columns] on the device, in parts of rows. layout names its shader variant."""

    name: str
    layout: str
    rows: int
    columns: int
    parts: tuple[MatrixPart, ...]


@dataclass(frozen=True)
class AttentionWeights:
    attn_q: Matrix
    attn_k: Matrix
    attn_v: Matrix
    attn_output: Matrix
    attn_q_norm: Buffer
    attn_k_norm: Buffer


@dataclass(frozen=True)
class DeltaNetWeights:
    attn_qkv: Matrix
    attn_gate: Matrix
    ssm_beta: Matrix
    ssm_alpha: Matrix
    ssm_out: Matrix
    ssm_conv1d: Buffer
    ssm_dt: Buffer
    ssm_a: Buffer
    ssm_norm: Buffer


@dataclass(frozen=True)
class MLPWeights:
    ffn_gate: Matrix
    ffn_up: Matrix
    ffn_down: Matrix

    @property
    def every_token(self) -> MLPWeights:
        """What of a feed-forward part every token takes."""
        return self


@dataclass(frozen=True)
class MixtureWeights:
    """shared: of the expert that every token takes; shared_gate: of how much it counts for; router: of which others do
    and how much.
    """

    router: Matrix
    ffn_gate: ExpertMatrix
    ffn_up: ExpertMatrix
    ffn_down: ExpertMatrix
    shared: MLPWeights
    shared_gate: Buffer

    @property
    def every_token(self) -> MLPWeights:
        return self.shared


@dataclass(frozen=True)
class LayerWeights:
    attn_norm: Buffer
    mixer: AttentionWeights | DeltaNetWeights
    post_attention_norm: Buffer
    mlp: MLPWeights | MixtureWeights


@dataclass(frozen=True)
class MTPWeights:
    """Of the multi-token-prediction block; what its file does not have is the trunk's."""

    embed_tokens: Matrix
    enorm: Buffer
    hnorm: Buffer
    eh_proj: Matrix
    layer: LayerWeights
    shared_head_norm: Buffer
    shared_head_head: Matrix


@dataclass(frozen=True)
class ModelWeights:
    token_embd: Matrix
    output_norm: Buffer
    output: Matrix  # token_embd where the embeddings are tied
    layers: tuple[LayerWeights, ...]
    mtp: MTPWeights | None
    pools: tuple[Buffer, ...]  # the memory behind all of them


def part_rows(rows: int, row_bytes: int, head: int) -> list[tuple[int, int]]:
    """(first row, rows) of each part of a matrix whose packed rows have row_bytes, behind `head` words of a grid."""
    most = max(ROW_GROUP, (PART_BYTES - 4 * head) // row_bytes // ROW_GROUP * ROW_GROUP)
    return [(first, min(most, rows - first)) for first in range(0, rows, most)]


def weight_bytes(file: GGUFFile, specs: Iterable[TensorSpec]) -> int:
    """Device bytes of these tensors: what `load_weights` allocates for them."""
    return sum(4 * words for _, _, words in _pieces(file, specs, POOL_BYTES))


def load_weights(
    file: GGUFFile, config: ModelConfig, device: Device, progress: Progress | None = None, block: MTPBlock | None = None
) -> ModelWeights:
    """Upload every weight of the trunk, and of a multi-token-prediction block. Raises GGUFError for NaN or infinity in
    a tensor.
    """
    sources = [(file, tensor_specs(config), "weights")] + ([(block.file, block.specs, "mtp")] if block else [])
    total, done = sum(weight_bytes(source, specs) for source, specs, _ in sources), 0
    pools: list[Buffer] = []
    limit = min(POOL_BYTES, device.info.max_buffer_bytes)
    tensors: dict[str, Matrix | ExpertMatrix | Buffer] = {}
    with _threads() as pool:
        for source, specs, kind in sources:
            some, places = _allocate(list(_pieces(source, specs, limit)), device, kind, limit)
            pools += some
            for spec in specs:
                if spec.role == "matrix":
                    tensors[spec.name] = _load_matrix(source, spec, places[spec.name], device, pool)
                elif spec.role == "experts":
                    tensors |= _load_experts(source, spec, places[spec.name], device, pool)
                else:
                    tensors[spec.name] = replace(places[spec.name][0], shape=spec.shape)
                    device.upload(tensors[spec.name], [read_vector(source, spec)])
                done += sum(place.num_bytes for place in places[spec.name])
                if progress:
                    progress("loading weights", done, total)
    return _assemble(tensors, config, pools, block)


@contextmanager
def _threads() -> Iterator[ThreadPoolExecutor]:
    """Threads to pack with. They write into memory that goes back when an exception ends this block, so they are waited
    for, the milliseconds that a slice takes, also when Ctrl-C comes again meanwhile.
    """
    pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1))
    try:
        yield pool
    finally:
        interrupt, ended = None, False
        while not ended:
            try:
                pool.shutdown(cancel_futures=True)
                ended = True
            except KeyboardInterrupt as again:
                interrupt = again
        if interrupt:
            raise interrupt


def _pieces(file: GGUFFile, specs: Iterable[TensorSpec], limit: int) -> Iterator[tuple[str, str, int]]:
    """(tensor, label, 32-bit words) of everything that is laid out in the pools, in order. limit: most bytes of one.

    The same tensor of all layers lies together, vectors first: a pipeline binds one pool, so this makes for the fewest.
    """

    def place(spec: TensorSpec) -> tuple[bool, str, str]:
        return spec.role != "vector", spec.name.split(".", 2)[-1], file.info(spec.name).type.name

    for spec in sorted(specs, key=place):
        weight_type = file.info(spec.name).type
        if spec.role == "matrix":
            row_bytes, head = packed_row_bytes(weight_type, spec.shape[1]), layout_of(weight_type).grid_words
            for first, rows in part_rows(spec.shape[0], row_bytes, head):
                yield spec.name, f"{spec.name}[{first}:{first + rows}]", head + padded_rows(rows) * row_bytes // 4
        elif spec.role == "experts":
            head = layout_of(weight_type).grid_words
            for stack in stacks_of(spec):
                words = expert_words(weight_type, stack.rows, spec.shape[2])
                for first, count in stack.slabs(words, limit // 4 - head):
                    yield spec.name, f"{stack.name}[{first}:{first + count}]", head + count * words
        else:
            yield spec.name, spec.name, round_up(int(np.prod(spec.shape)), VECTOR_ALIGN)


def _allocate(
    pieces: list[tuple[str, str, int]], device: Device, kind: str, limit: int
) -> tuple[list[Buffer], dict[str, list[Buffer]]]:
    """(pools, tensor -> its places in them). Pieces follow each other in few large buffers, so that layers can share
    pipelines. limit: most bytes of one.
    """
    sizes, starts = [0], []
    for _, _, words in pieces:
        if sizes[-1] + words > limit // 4:
            sizes.append(0)
        starts.append((len(sizes) - 1, sizes[-1]))
        sizes[-1] += words
    pools = [
        device.buffer(f"{kind} {i}", (size,), np.uint32, kind=kind, filled_by_cpu=True) for i, size in enumerate(sizes)
    ]
    places: dict[str, list[Buffer]] = {}
    for (name, label, words), (pool, offset) in zip(pieces, starts, strict=True):
        places.setdefault(name, []).append(pools[pool].part(label, offset, (words,)))
    return pools, places


def _load_matrix(
    file: GGUFFile, spec: TensorSpec, places: list[Buffer], device: Device, pool: ThreadPoolExecutor
) -> Matrix:
    weight_type, (rows, columns) = file.info(spec.name).type, spec.shape
    row_bytes, layout = packed_row_bytes(weight_type, columns), layout_of(weight_type)
    parts = []
    for place, (first, count) in zip(places, part_rows(rows, row_bytes, layout.grid_words), strict=True):
        _fill(file, spec, place, [(slice(first, first + count), 0)], device, pool)
        parts.append(MatrixPart(first, count, place))
    return Matrix(spec.name, layout.name, rows, columns, tuple(parts))


def _load_experts(
    file: GGUFFile, spec: TensorSpec, places: list[Buffer], device: Device, pool: ThreadPoolExecutor
) -> dict[str, ExpertMatrix]:
    """The matrices that a tensor of experts holds one or two of, by name."""
    weight_type, columns, at = file.info(spec.name).type, spec.shape[2], iter(places)
    layout, matrices = layout_of(weight_type), {}
    limit = min(POOL_BYTES, device.info.max_buffer_bytes) // 4 - layout.grid_words
    for stack in stacks_of(spec):
        words, slabs = expert_words(weight_type, stack.rows, columns), []
        for first, count in stack.slabs(words, limit):
            place = next(at)
            _fill(file, spec, place, [(stack.rows_of(first + i), i * words) for i in range(count)], device, pool)
            slabs.append(Slab(first, count, place))
        matrices[stack.name] = ExpertMatrix(
            stack.name, layout.name, stack.count, stack.rows, columns, words, tuple(slabs)
        )
    return matrices


def _fill(
    file: GGUFFile,
    spec: TensorSpec,
    place: Buffer,
    runs: list[tuple[slice, int]],
    device: Device,
    pool: ThreadPoolExecutor,
) -> None:
    """The grid of a tensor's format, and runs of its rows, to their place on the device. runs: (rows of the file, their
    first word behind the grid), one after another.
    """
    row_bytes, head = packed_row_bytes(file.info(spec.name).type, spec.shape[-1]), grid_words(file.info(spec.name).type)
    step = max(ROW_GROUP, SLICE_BYTES // row_bytes // ROW_GROUP * ROW_GROUP)
    words = place.view()[len(head) :] if place.visible else None
    slices = (
        (slice(start, min(start + step, rows.stop)), first + (start - rows.start) * row_bytes // 4)
        for rows, first in runs
        for start in range(rows.start, rows.stop, step)
    )
    packed = _ahead(pool, partial(_pack, file, spec, words), slices)
    if words is None:
        device.upload(place, chain([head], packed))
    else:
        place.view()[: len(head)] = head
        deque(packed, maxlen=0)  # which is where they stay


def _pack(file: GGUFFile, spec: TensorSpec, words: np.ndarray | None, run: tuple[slice, int]) -> np.ndarray:
    """Rows of a tensor, packed to their place in `words`; None: in a new array."""
    (rows, first), weight_type = run, file.info(spec.name).type
    count = rows.stop - rows.start
    check_finite(file, spec.name, rows.start, count)
    if words is not None:
        row_words = packed_row_bytes(weight_type, spec.shape[-1]) // 4
        words = words[first:][: padded_rows(count) * row_words]
    packed = pack_rows(file.data(spec.name)[rows], weight_type, words)
    file.release(spec.name, rows)
    return packed


def _ahead(pool: ThreadPoolExecutor, work: Callable, items: Iterable) -> Iterator:
    """work(item) for each item in order, computed by the pool a few items ahead of the consumer."""
    pending: deque = deque()
    for item in items:
        pending.append(pool.submit(work, item))
        if len(pending) > pool._max_workers:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def _assemble(
    tensors: dict[str, Matrix | ExpertMatrix | Buffer], config: ModelConfig, pools: list[Buffer], block: MTPBlock | None
) -> ModelWeights:
    layers = tuple(_layer(tensors, layer, kind) for layer, kind in enumerate(config.layer_types))
    embedding, norm = tensors[TOKEN_EMBEDDING], tensors["output_norm.weight"]
    output, mtp = tensors.get(OUTPUT, embedding), None
    if block is not None:
        prefix = f"blk.{block.layer}.nextn."
        mtp = MTPWeights(
            embed_tokens=tensors.get(prefix + "embed_tokens.weight", embedding),
            enorm=tensors[prefix + "enorm.weight"],
            hnorm=tensors[prefix + "hnorm.weight"],
            eh_proj=tensors[prefix + "eh_proj.weight"],
            layer=_layer(tensors, block.layer, FULL_ATTENTION),
            shared_head_norm=tensors.get(prefix + "shared_head_norm.weight", norm),
            shared_head_head=tensors.get(prefix + "shared_head_head.weight", output),
        )
    return ModelWeights(embedding, norm, output, layers, mtp, tuple(pools))


def _layer(tensors: dict[str, Matrix | ExpertMatrix | Buffer], layer: int, kind: str) -> LayerWeights:
    def get(name: str) -> Matrix | ExpertMatrix | Buffer:
        return tensors[f"blk.{layer}.{name}"]

    mixer: AttentionWeights | DeltaNetWeights
    if kind == FULL_ATTENTION:
        mixer = AttentionWeights(
            attn_q=get("attn_q.weight"),
            attn_k=get("attn_k.weight"),
            attn_v=get("attn_v.weight"),
            attn_output=get("attn_output.weight"),
            attn_q_norm=get("attn_q_norm.weight"),
            attn_k_norm=get("attn_k_norm.weight"),
        )
    else:
        mixer = DeltaNetWeights(
            attn_qkv=get("attn_qkv.weight"),
            attn_gate=get("attn_gate.weight"),
            ssm_beta=get("ssm_beta.weight"),
            ssm_alpha=get("ssm_alpha.weight"),
            ssm_out=get("ssm_out.weight"),
            ssm_conv1d=get("ssm_conv1d.weight"),
            ssm_dt=get("ssm_dt.bias"),
            ssm_a=get("ssm_a"),
            ssm_norm=get("ssm_norm.weight"),
        )
    prefix = f"blk.{layer}."
    mlp = feed_forward_weights({name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)})
    return LayerWeights(get("attn_norm.weight"), mixer, get("post_attention_norm.weight"), mlp)


def feed_forward_weights(tensors: dict[str, Matrix | ExpertMatrix | Buffer]) -> MLPWeights | MixtureWeights:
    """Of one block, by what it has: experts or none."""

    def dense(of: str) -> MLPWeights:
        return MLPWeights(*(tensors[f"ffn_{name}{of}.weight"] for name in ("gate", "up", "down")))

    if "ffn_gate_inp.weight" not in tensors:
        return dense("")
    return MixtureWeights(
        tensors["ffn_gate_inp.weight"],
        *(tensors[f"ffn_{name}_exps.weight"] for name in ("gate", "up", "down")),
        dense("_shexp"),
        tensors["ffn_gate_inp_shexp.weight"],
    )
