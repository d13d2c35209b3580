"""Where a layer is recorded: its place in the model, and the buffers that it works in."""

from __future__ import annotations

from dataclasses import dataclass

from vkprefill.engine.cache_pool import CachePool
from vkprefill.engine.halves import HalfRows
from vkprefill.engine.scratch import Scratch
from vkprefill.gguf.config import ModelConfig
from vkprefill.vulkan.buffer import Buffer


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
