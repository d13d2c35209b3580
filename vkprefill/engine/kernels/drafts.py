"""What the multi-token-prediction block has beside an attention layer's kernels: its input, the rows it hands on."""

from __future__ import annotations

from vkprefill.engine.halves import HalfRows
from vkprefill.engine.kernels.common import check_shapes, half_lanes, half_words, lanes_for
from vkprefill.engine.kernels.matrix import place
from vkprefill.engine.weights import Matrix
from vkprefill.errors import ShapeError
from vkprefill.rounding import ceil_div
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.program import Program


def mtp_input(
    p: Program,
    e: Buffer,
    h: Buffer,
    waited: Buffer,
    enorm: Buffer,
    hnorm: Buffer,
    y: Buffer,
    *,
    eps: float,
    half: HalfRows | None = None,
) -> None:
    """y[T, 2D] = normed e[T, D] beside the normed row of h[T, D] of the token before; of the first token `waited` [D].
    half: goes there instead, as halves.
    """
    dim = e.shape[1]
    check_shapes(
        "mtp_input",
        h=(h.shape[1:], (dim,)),
        waited=(waited.shape, (dim,)),
        enorm=(enorm.shape, (dim,)),
        hnorm=(hnorm.shape, (dim,)),
        y=(y.shape[1:], (2 * dim,)),
    )
    inputs = [p.step, e, h, waited, enorm, hnorm]
    push = {"waited_offset": waited.offset, "enorm_offset": enorm.offset, "hnorm_offset": hnorm.offset}
    constants = {"LOCAL_SIZE": p.device.profile.local_size, "D": dim, "EPS": eps}
    if half is None:
        p.dispatch("mtp_input", [*inputs, y], (p.num_rows, 1, 1), constants=constants, push=push)
        return
    constants["LOCAL_SIZE"] = half_lanes(p, 2 * dim)
    halves = [half_words("mtp_input", half, 2 * dim), half.factors]
    p.dispatch("mtp_input_half", [*inputs, *halves], (p.num_rows, 1, 1), constants=constants, push=push)


def keep_row(p: Program, x: Buffer, kept: Buffer) -> None:
    """kept[D] = the last row in use of x[T, D]."""
    dim = x.shape[1]
    check_shapes("keep_row", kept=(kept.shape, (dim,)))
    local = p.device.profile.local_size
    p.dispatch(
        "keep_row",
        [p.step, x, kept],
        (ceil_div(dim // 4, local), 1, 1),
        constants={"LOCAL_SIZE": local, "D": dim},
        push={"kept_offset": kept.offset},
    )


def last_accepted(p: Program, kept: Buffer, waited: Buffer, *, keep: Buffer | None = None) -> None:
    """waited[D] = the last of the rows in kept[KEPT, D] that wait; as it is where none does. keep: the rows of x[R, D]
    in use take their places.
    """
    dim = kept.shape[1]
    check_shapes("last_accepted", waited=(waited.shape, (dim,)), keep=((keep or kept).shape[1:], (dim,)))
    if keep and p.num_rows > kept.shape[0]:
        raise ShapeError(f"last_accepted: a program of {p.num_rows} rows, wanted at most {kept.shape[0]}")
    local = p.device.profile.local_size
    p.dispatch(
        "last_accepted",
        [p.step, keep or waited, kept, waited],
        (ceil_div(dim // 4, local), 1, 1),
        constants={"LOCAL_SIZE": local, "D": dim, "KEEP": int(keep is not None)},
        push={"kept_offset": kept.offset, "waited_offset": waited.offset},
    )


def matvec_rows(p: Program, x: Buffer, matrix: Matrix, ids: Buffer, y: Buffer, *, y_offset: int) -> None:
    """y[y_offset + i] = row ids[i] of W times x[K], W [N, K]; where ids[i] is NO_ROW, the least float."""
    check_shapes("matvec_rows", x=(x.shape[-1:], (matrix.columns,)))
    if y.shape[-1] < y_offset + ids.shape[0]:
        raise ShapeError(f"matvec_rows: {y_offset} + {ids.shape[0]} results do not fit in {y.shape[-1]}")
    for part in matrix.parts:
        p.dispatch(
            f"matvec_rows_{matrix.layout}",
            [x, part.buffer, ids, y],
            (ids.shape[0], 1, 1),
            constants={"LOCAL_SIZE": lanes_for(ceil_div(matrix.columns, 32), 32), "Y_OFFSET": y_offset},
            push=place(matrix, part),
            work=2.0 * ids.shape[0] * matrix.columns,
            label=f"matvec_rows {matrix.name}",
        )


def next_draft(
    p: Program,
    candidates: Buffer,
    ids: Buffer,
    token_ids: Buffer,
    rope: Buffer,
    drafts: Buffer,
    *,
    row: int,
    first_rows: int,
) -> None:
    """candidates[.., 2] of a draft row -> drafts[row, most, 2], with token ids for places in the draft head, which are
    the ids up to first_rows, then `ids`; the best one, the slot and rope[row + 1] become those of the next row.
    """
    pairs = rope.shape[1]
    if not row + 1 < rope.shape[0] or not row < drafts.shape[0]:
        raise ShapeError(f"next_draft: row {row} of rope {rope.shape} and drafts {drafts.shape}")
    p.dispatch(
        "next_draft",
        [p.step, candidates, ids, token_ids, rope, drafts],
        (1, 1, 1),
        constants={"LOCAL_SIZE": 32, "PAIRS": pairs, "MOST": drafts.shape[1], "FIRST_ROWS": first_rows},
        push={"row": row},
    )
