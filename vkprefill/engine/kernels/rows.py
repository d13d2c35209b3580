"""Rows that are kept aside and taken up again."""

from __future__ import annotations

from vkprefill.engine.kernels.common import check_shapes
from vkprefill.rounding import ceil_div
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.program import Program

NO_ROW = 2**32 - 1


def move_rows(p: Program, pairs: Buffer, x: Buffer, y: Buffer) -> None:
    """y[to] = x[from] of rows of D floats, for as many of pairs[T, 2] (from, to) as the run has tokens; a `from` of
    NO_ROW moves nothing.
    """
    dim, local = x.shape[1], p.device.profile.local_size
    check_shapes("move_rows", y=(y.shape[1:], (dim,)), pairs=(pairs.shape, (p.num_rows, 2)))
    p.dispatch(
        "move_rows",
        [p.step, pairs, x, y],
        (ceil_div(dim // 4, local), p.num_rows, 1),
        constants={"LOCAL_SIZE": local, "D": dim},
    )
