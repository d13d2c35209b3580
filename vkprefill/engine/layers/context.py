"""Where a layer is recorded: its place in the model, and the buffers that it works in."""

from __future__ import annotations

from dataclasses import dataclass

from vkprefill.engine import kernels
from vkprefill.engine.cache_pool import CachePool
from vkprefill.engine.halves import HalfRows
from vkprefill.engine.points import Rows, announce, wanted, whole_rows
from vkprefill.engine.scratch import Scratch
from vkprefill.gguf.config import ModelConfig
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.program import Program


@dataclass(frozen=True)
class LayerContext:
    """index: of the layer in the model; half: room for halves, where its products are to be of them; few_rows: its
    rows may be taken back (engine/kept_rows.py), and the bits of one do not depend on the others; pages:
    the table of those that hold its keys and values. A layer reads
    scratch.h, the normed residual stream, which half holds too, and adds to scratch.x.
    """

    index: int
    config: ModelConfig
    pool: CachePool
    scratch: Scratch
    half: HalfRows | None
    pages: Buffer
    few_rows: bool = False

    def point(self, p: Program, name: str, rows: Rows | Buffer) -> None:
        """Tell whoever watches that a point of this layer is what these rows hold; a buffer: all of it."""
        announce(p, self._full(name), whole_rows(rows) if isinstance(rows, Buffer) else rows)

    def branch(self, p: Program, *names: str) -> Buffer:
        """Where the last product of a part of the layer goes, to be added to what is there: the residual stream; if
        one of these points is watched, which stand for the part's output, zeros in scratch.h, which is free by then.
        """
        if not wanted(p, *map(self._full, names)):
            return self.scratch.x
        p.fill(self.scratch.h)
        return self.scratch.h

    def join(self, p: Program, branch: Buffer, *names: str) -> None:
        """After it: what is not in the residual stream yet is added to it, which gives the same bits."""
        if branch is not self.scratch.x:
            for name in names:
                self.point(p, name, branch)
            kernels.add_rows(p, branch, self.scratch.x)

    def _full(self, name: str) -> str:
        return f"blocks.{self.index}.{name}"
