"""Products with weight matrices, dequantised inside the kernels, and their rows as embeddings."""

from __future__ import annotations

from vkprefill.engine.kernels.common import ceil_div, check_shapes, shuffle_form
from vkprefill.engine.weights import Matrix, MatrixPart
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.program import Program


def embedding(p: Program, token_ids: Buffer, matrix: Matrix, x: Buffer) -> None:
    """x[T, D] = rows token_ids[T] of matrix [V, D]."""
    check_shapes("embedding", x=(x.shape[1:], (matrix.columns,)))
    local = min(32, p.device.profile.local_size)
    for part in matrix.parts:
        p.dispatch(
            f"embedding_{matrix.layout}",
            [p.step, part.buffer, token_ids, x],
            (p.num_rows, ceil_div(matrix.columns // 32, local), 1),
            constants={"LOCAL_SIZE": local},
            push=_place(matrix, part),
        )


def linear(p: Program, x: Buffer, matrix: Matrix, y: Buffer, *, add: bool = False, one_row: bool = False) -> None:
    """y[T, N] = x[T, K] W^T, W [N, K]; add: y += it. One row (one token, or one_row) goes through matvec."""
    check_shapes("linear", x=(x.shape[1:], (matrix.columns,)), y=(y.shape[-1:], (matrix.rows,)))
    single = one_row or p.num_rows == 1
    profile = p.device.profile
    form, shuffle = shuffle_form(p)
    for part in matrix.parts:
        work = 2.0 * part.rows * matrix.columns
        if single:
            lanes, slices, tn = profile.matvec
            p.dispatch(
                f"matvec{form}_{matrix.layout}",
                [x, part.buffer, y],
                (ceil_div(part.rows, lanes * tn), 1, 1),
                constants={"ROW_LANES": lanes, "TN": tn, "ADD": int(add), "SLICES": slices, **shuffle},
                push=_place(matrix, part),
                work=work,
                label=f"matvec {matrix.name}",
            )
        else:
            local, tm, tn = profile.matmul
            tile = {"LOCAL_SIZE": local, "TM": tm} | ({} if profile.hybrid else {"TN": tn})
            p.dispatch(
                f"matmul{'_hybrid' if profile.hybrid else form}_{matrix.layout}",
                [p.step, part.buffer, x, y],
                (ceil_div(p.num_rows, tm), ceil_div(part.rows, local * tn), 1),
                constants={**tile, "ADD": int(add), **shuffle},
                push=_place(matrix, part),
                work=work * p.num_rows,
                label=f"matmul {matrix.name}",
            )


def _place(matrix: Matrix, part: MatrixPart) -> dict[str, int]:
    """Of a part in its buffer and in the matrix: the push constants of shaders/include/weights.glsl."""
    return {
        "w_offset": part.buffer.offset // 4,
        "rows": part.rows,
        "K": matrix.columns,
        "first_row": part.first_row,
        "N": matrix.rows,
    }
