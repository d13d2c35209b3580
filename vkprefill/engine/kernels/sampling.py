"""The best tokens of a row of logits."""

from __future__ import annotations

from vkprefill.engine.kernels.common import ceil_div, check_shapes
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.program import Program


def top_k(p: Program, logits: Buffer, seen: Buffer, block_best: Buffer, candidates: Buffer) -> None:
    """The best k tokens of logits[V] (k, and the penalty on `seen`, from the step buffer) into candidates[.., 2]."""
    (vocab,) = logits.shape
    blocks = ceil_div(vocab, 64)
    check_shapes("top_k", seen=(seen.shape, (ceil_div(vocab, 32),)), block_best=(block_best.shape, (blocks, 2)))
    local = p.device.profile.local_size
    constants = {"LOCAL_SIZE": local, "V": vocab}
    p.dispatch("top_k_blocks", [p.step, logits, seen, block_best], (ceil_div(blocks, local), 1, 1), constants=constants)
    p.dispatch("top_k", [p.step, logits, seen, block_best, candidates], (1, 1, 1), constants=constants)
