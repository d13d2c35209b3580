"""Products with weight matrices, dequantised inside the kernels, in float32 or of halves; rows as embeddings."""

from __future__ import annotations

import math
from collections.abc import Iterator

from vkprefill.engine.halves import SHORT_RUN, HalfRows, half_for
from vkprefill.engine.kernels.common import check_shapes, half_words, shuffle_form
from vkprefill.engine.weights import Matrix, MatrixPart
from vkprefill.gguf.quants import LAYOUTS, ROW_GROUP
from vkprefill.rounding import ceil_div
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.program import Program

BATCH = 256  # columns of a row of weights that a slice of matvec takes at a time


def embedding(p: Program, token_ids: Buffer, matrix: Matrix, x: Buffer) -> None:
    """x[T, D] = rows token_ids[T] of matrix [V, D]."""
    check_shapes("embedding", x=(x.shape[1:], (matrix.columns,)))
    local = min(32, p.device.profile.local_size)
    for part in matrix.parts:
        p.dispatch(
            f"embedding_{matrix.layout}",
            [p.step, part.buffer, token_ids, x],
            (p.num_rows, ceil_div(ceil_div(matrix.columns, 32), local), 1),
            constants={"LOCAL_SIZE": local},
            push=place(matrix, part),
        )


def linear(
    p: Program,
    x: Buffer,
    matrix: Matrix,
    y: Buffer,
    *,
    add: bool = False,
    one_row: bool = False,
    half: HalfRows | None = None,
) -> None:
    """y[T, N] = x[T, K] W^T, W [N, K]; add: y += it. one_row: the first row of x alone, y[N].

    Programs of up to SHORT_RUN rows take matvec, which reads each weight once for all of them and sums each row in the
    same order whatever their number.

    half: holds x as halves, from the kernel that made x; the product is one of halves then, unless the weights are of
    a layout that halves do not hold.
    """
    check_shapes("linear", x=(x.shape[1:], (matrix.columns,)), y=(y.shape[-1:], (matrix.rows,)))
    if one_row or p.num_rows <= SHORT_RUN:
        _matvec(p, x, matrix, y, add, 1 if one_row else p.num_rows)
    elif half_for(matrix, half):
        _half_matmul(p, half, matrix, y, add)
    else:
        _matmul(p, x, matrix, y, add)


def _matvec(p: Program, x: Buffer, matrix: Matrix, y: Buffer, add: bool, most: int) -> None:
    """most: rows of x that may be in use, up to SHORT_RUN; the kernel has forms for 1, 2, 4 and 8. The step says how
    many are, where it may be more than one.
    """
    form, constants = matvec_form(p, matrix.columns, most)
    for part in matrix.parts:
        p.dispatch(
            f"matvec{form}_{matrix.layout}",
            [p.step, part.buffer, x, y],
            (ceil_div(part.rows, constants["ROW_LANES"] * constants["TN"]), 1, 1),
            constants=constants,
            push=place(matrix, part, add),
            work=2.0 * part.rows * matrix.columns * most,
            label=f"matvec {matrix.name}",
        )


def matvec_form(p: Program, columns: int, most: int) -> tuple[str, dict[str, int]]:
    """Suffix and constants of matvec for rows of so many columns; most: as above."""
    lanes, slices, tn = p.device.profile.matvec
    form, shuffle = shuffle_form(p, has_wide=True)
    tm = 1 << (most - 1).bit_length()
    return form, {"ROW_LANES": lanes, "SLICES": slices_for(columns, slices), "TM": tm, "TN": tn} | shuffle


def slices_for(columns: int, most: int) -> int:
    """Slices of a row of so many columns in matvec: as few as need no more rounds than `most`, so that none idles."""
    batches = ceil_div(columns, BATCH)
    return ceil_div(batches, ceil_div(batches, most))


def _matmul(p: Program, x: Buffer, matrix: Matrix, y: Buffer, add: bool) -> None:
    form, constants = matmul_form(p)
    for part in matrix.parts:
        _tiles(p, f"matmul{form}_{matrix.layout}", [p.step, part.buffer, x, y], matrix, part, constants, add)


def matmul_form(p: Program) -> tuple[str, dict[str, int]]:
    """Suffix and constants of matmul."""
    profile = p.device.profile
    local, tm, tn = profile.matmul
    form, constants = ("_hybrid", {}) if profile.hybrid else shuffle_form(p, has_wide=True)
    return form, {"LOCAL_SIZE": local, "TM": tm} | ({} if profile.hybrid else {"TN": tn}) | constants


def half_matmul_form(p: Program) -> tuple[str, dict[str, int]]:
    local, tm = p.device.profile.half_matmul
    return ("_hybrid_dot2" if p.device.abilities.has_dot2 else "_hybrid_half"), {"LOCAL_SIZE": local, "TM": tm}


def _half_matmul(p: Program, half: HalfRows, matrix: Matrix, y: Buffer, add: bool) -> None:
    words = half_words("linear", half, matrix.columns)
    form, constants = half_matmul_form(p)
    for part in matrix.parts:
        buffers = [p.step, part.buffer, words, y, half.factors]
        _tiles(p, f"matmul{form}_{matrix.layout}", buffers, matrix, part, constants, add)


def _tiles(
    p: Program,
    shader: str,
    buffers: list[Buffer],
    matrix: Matrix,
    part: MatrixPart,
    constants: dict[str, int],
    add: bool,
) -> None:
    """A matmul over tiles of tokens and rows of a part."""
    push, wide = place(matrix, part, add), constants["LOCAL_SIZE"] * constants.get("TN", 1)
    for cut, rows in bounded_rows(p, matrix.layout, matrix.columns, part.rows, p.num_rows, wide):
        p.dispatch(
            shader,
            buffers,
            (
                ceil_div(p.num_rows, constants["TM"]),
                ceil_div(rows, wide),
                1,
            ),
            constants=constants,
            push={name: value + cut.get(name, 0) for name, value in push.items()} | {"rows": rows},
            work=2.0 * rows * matrix.columns * p.num_rows,
            label=f"matmul {matrix.name}",
        )


def bounded_rows(
    p: Program, layout: str, columns: int, rows: int, tokens: float, wide: int
) -> Iterator[tuple[dict[str, int], int]]:
    """(what push constants grow by, rows) of pieces of a matrix, none of them more work than a submission may be, but
    for what a workgroup computes at least: `wide` rows, in use or not.
    """
    unit = LAYOUTS[layout]
    row_words = ceil_div(columns, unit.unit_weights) * unit.unit_words
    whole = math.lcm(wide, ROW_GROUP)
    most = max(1, int(p.device.profile.submission_flop / (2.0 * columns * tokens)) // whole) * whole
    for first in range(0, rows, most):
        yield {"w_offset": first * row_words // 4, "first_row": first}, min(most, rows - first)


def place(matrix: Matrix, part: MatrixPart, add: bool = False) -> dict[str, int]:
    """Of a part in its buffer and in the matrix: the push constants of shaders/include/weights.glsl."""
    return {
        "w_offset": (part.buffer.offset + LAYOUTS[matrix.layout].grid_words) // 4,
        "w_head": part.buffer.offset // 4,
        "rows": part.rows,
        "K": matrix.columns,
        "first_row": part.first_row,
        "N": matrix.rows,
        "add": int(add),
    }
