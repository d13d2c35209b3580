"""Points of a forward pass, read and changed while it runs."""

from __future__ import annotations

from vkprefill.engine.kernels.common import check_shapes
from vkprefill.engine.points import Rows
from vkprefill.rounding import ceil_div
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.program import Program

ADD, SCALE, SET = range(3)  # what edit_rows does with a number and a value
KEEP = 0x7FA00002  # bits of a value that leaves the number as it is


def record_rows(p: Program, rows: Buffer, x: Rows, y: Buffer) -> None:
    """y[rows[t], H W] = the row of x of each token t; NO_ROW: of this one none. y may be a host buffer."""
    check_shapes("record_rows", y=(y.shape[1:], (x.heads * x.width,)), rows=(rows.shape, (p.num_rows,)))
    _dispatch(p, "record_rows", [p.step, rows, x.buffer, y], x, {})


def edit_rows(p: Program, rows: Buffer, values: Buffer, x: Rows, op: int) -> None:
    """x changes by ADD, SCALE or SET with row rows[t] of values [R, H W] for each token t; NO_ROW: it stays."""
    check_shapes("edit_rows", values=(values.shape[1:], (x.heads * x.width,)), rows=(rows.shape, (p.num_rows,)))
    _dispatch(p, "edit_rows", [p.step, rows, values, x.buffer], x, {"OP": op})


def _dispatch(p: Program, shader: str, buffers: list[Buffer], x: Rows, constants: dict[str, int]) -> None:
    local = p.device.profile.local_size
    p.dispatch(
        shader,
        buffers,
        (ceil_div(x.heads * x.width, local), p.num_rows, 1),
        constants={"LOCAL_SIZE": local, "H": x.heads, "W": x.width, "KEPT": int(x.kept), **constants},
        push={"offset": x.offset, "row_stride": x.row_stride, "head_stride": x.head_stride},
    )


def add_rows(p: Program, y: Buffer, x: Buffer) -> None:
    """x[T, D] += y[T, D]"""
    dim, local = x.shape[1], p.device.profile.local_size
    check_shapes("add_rows", y=(y.shape[1:], (dim,)))
    grid = ceil_div(dim // 4, local), p.num_rows, 1
    p.dispatch("add_rows", [p.step, y, x], grid, constants={"LOCAL_SIZE": local, "D": dim})
