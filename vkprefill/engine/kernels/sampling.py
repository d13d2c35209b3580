"""The best tokens of rows of logits."""

from __future__ import annotations

from vkprefill.engine.kernels.common import check_shapes
from vkprefill.errors import ShapeError
from vkprefill.rounding import ceil_div
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.program import Program


def top_k(
    p: Program,
    logits: Buffer,
    seen: Buffer,
    token_ids: Buffer,
    allowed: Buffer,
    block_best: Buffer,
    candidates: Buffer,
) -> None:
    """The best k tokens of each row of logits[R, V] into candidates[R, k.., 2]; k and the penalty: of the step buffer.

    The penalty lowers `seen` and, in row r, tokens 1 to r of token_ids[R], which the run has before that row. Where
    allowed[0] is 1, only tokens with a bit in the words after it, V / 32 for each row, are candidates.
    """
    rows, vocab = logits.shape
    blocks = ceil_div(vocab, 64)
    words = (ceil_div(vocab, 32),)
    check_shapes("top_k", seen=(seen.shape, words), block_best=(block_best.shape[1:], (blocks, 2)))
    rows_allowed = (allowed.shape[0] - 1) // words[0]
    fewest = min(rows, rows_allowed, *(buffer.shape[0] for buffer in (token_ids, block_best, candidates)))
    if p.num_rows > fewest:
        raise ShapeError(f"top_k: {p.num_rows} rows, wanted at most {fewest}")
    local = p.device.profile.local_size
    constants, inputs = {"LOCAL_SIZE": local, "V": vocab}, [p.step, logits, seen, token_ids, allowed, block_best]
    p.dispatch("top_k_blocks", inputs, (ceil_div(blocks, local), p.num_rows, 1), constants=constants)
    constants = constants | {"MOST": candidates.shape[1]}
    p.dispatch("top_k", [*inputs, candidates], (1, p.num_rows, 1), constants=constants)
