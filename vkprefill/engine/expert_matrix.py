"""The matrices of a layer's experts on the device: whole ones, one after another, in slabs that a device can bind."""

from __future__ import annotations

from dataclasses import dataclass

from gguf import GGMLQuantizationType

from vkprefill.errors import OutOfMemoryError
from vkprefill.gguf.experts import FUSED_EXPERTS
from vkprefill.gguf.quants import packed_row_bytes, padded_rows
from vkprefill.gguf.tensors import TensorSpec
from vkprefill.vulkan.buffer import Buffer


@dataclass(frozen=True)
class Slab:
    """Experts [first, first + count) of a tensor; buffer: a part of a pool."""

    first: int
    count: int
    buffer: Buffer


@dataclass(frozen=True)
class ExpertMatrix:
    """A matrix [rows, columns] of each of `count` experts. words: 32-bit words from one expert to the next; layout
    names the shader variant.
    """

    name: str
    layout: str
    count: int
    rows: int
    columns: int
    words: int
    slabs: tuple[Slab, ...]


@dataclass(frozen=True)
class Stack:
    """What a tensor holds of each of `count` experts: `rows` rows, of which the first is its `start`th, `stride` rows
    from one expert to the next.
    """

    name: str
    count: int
    start: int
    rows: int
    stride: int

    def rows_of(self, expert: int) -> slice:
        first = expert * self.stride + self.start
        return slice(first, first + self.rows)

    def slabs(self, words: int, limit: int) -> list[tuple[int, int]]:
        """(first expert, experts) of each slab of at most `limit` words, where an expert has `words`."""
        most = limit // words
        if most == 0:
            raise OutOfMemoryError(
                f"{self.name}: an expert takes {words * 4 / 2**20:,.0f} MiB, the device allows "
                f"{limit * 4 / 2**20:,.0f} MiB in one buffer"
            )
        return [(first, min(most, self.count - first)) for first in range(0, self.count, most)]


def stacks_of(spec: TensorSpec) -> list[Stack]:
    """One for a tensor of experts; two where it has the rows of gate, then those of up."""
    count, rows, _ = spec.shape
    if not spec.name.endswith(FUSED_EXPERTS):
        return [Stack(spec.name, count, 0, rows, rows)]
    names = (spec.name.replace("gate_up", name) for name in ("gate", "up"))
    return [Stack(name, count, i * rows // 2, rows // 2, rows) for i, name in enumerate(names)]


def expert_words(weight_type: GGMLQuantizationType, rows: int, columns: int) -> int:
    return padded_rows(rows) * packed_row_bytes(weight_type, columns) // 4


def most_tiles(num_rows: int, num_experts: int, tile_rows: int) -> int:
    """Tiles that so many rows need at most, however they are shared out: each expert's last one may be short."""
    return num_rows // tile_rows + min(num_experts, num_rows)
