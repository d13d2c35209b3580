"""A mixture's feed-forward layers: who a token is sent to, products with the matrices of experts, the sum of them all.

K experts of a token, X in all, S rows of all tokens together: T K and a tile more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vkprefill.engine.expert_matrix import ExpertMatrix, Slab, most_tiles
from vkprefill.engine.halves import HalfRows, half_for
from vkprefill.engine.kernels.common import HALF_LANES, check_shapes, half_words
from vkprefill.engine.kernels.matrix import bounded_rows, half_matmul_form, matmul_form, matvec_form
from vkprefill.errors import ShapeError
from vkprefill.gguf.quants import LAYOUTS
from vkprefill.rounding import ceil_div
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.program import Program


@dataclass(frozen=True)
class RowTiles:
    """places uint32 [T, K]: where each token's rows are, sorted by expert; tiles uint32 [.., 4] of at most `rows` rows,
    of which a program of so many tokens takes the first `count`.
    """

    places: Buffer
    tiles: Buffer
    rows: int
    count: int

    @classmethod
    def of(cls, p: Program, places: Buffer, tiles: Buffer, num_experts: int) -> RowTiles:
        rows = p.device.profile.expert_rows
        return cls(places, tiles, rows, most_tiles(p.num_rows * places.shape[1], num_experts, rows))

    @property
    def per_token(self) -> int:
        return self.places.shape[1]


def route(p: Program, logits: Buffer, h: Buffer, gate: Buffer, ids: Buffer, shares: Buffer) -> None:
    """ids[T, K] = the experts with the largest of logits[T, X]; shares[T, K + 1] = how much each counts, and, by
    h[T, D] and gate[D], the expert that every token takes.
    """
    num_experts, (dim,), per_token = logits.shape[1], gate.shape, ids.shape[1]
    check_shapes("route", h=(h.shape[1:], (dim,)), shares=(shares.shape[1:], (per_token + 1,)))
    local = p.device.profile.local_size
    if per_token > min(num_experts, local):
        raise ShapeError(f"route: {per_token} of {num_experts} experts, wanted at most {min(num_experts, local)}")
    p.dispatch(
        "route",
        [p.step, logits, h, gate, ids, shares],
        (p.num_rows, 1, 1),
        constants={"LOCAL_SIZE": local, "D": dim, "X": num_experts, "K": per_token},
        push={"gate_offset": gate.offset},
    )


def group_rows(p: Program, ids: Buffer, tiles: RowTiles, num_experts: int) -> None:
    """Places and tiles of the rows of ids[T, K]."""
    per_token = ids.shape[1]
    check_shapes("group_rows", places=(tiles.places.shape[1:], (per_token,)), tiles=(tiles.tiles.shape[1:], (4,)))
    if tiles.tiles.shape[0] < tiles.count:
        raise ShapeError(f"group_rows: room for {tiles.tiles.shape[0]} tiles, wanted {tiles.count}")
    constants = {"LOCAL_SIZE": HALF_LANES, "X": num_experts, "K": per_token, "B": tiles.rows, "TILES": tiles.count}
    p.dispatch("group_rows", [p.step, ids, tiles.places, tiles.tiles], (1, 1, 1), constants=constants)


def gather_rows(p: Program, places: Buffer, x: Buffer | HalfRows, rows: Buffer | HalfRows, width: int) -> None:
    """rows[S, width] = the rows of x[T, width] in their places, float32 or halves."""
    local, per_token = p.device.profile.local_size, places.shape[1]
    if isinstance(x, HalfRows):
        words = width // 8
        source, target = (half_words("gather_rows", half, width) for half in (x, rows))
        name, buffers = "gather_rows_half", [p.step, places, source, target, x.factors, rows.factors]
    else:
        check_shapes("gather_rows", x=(x.shape[1:], (width,)), rows=(rows.shape[1:], (width,)))
        words, name, buffers = width // 4, "gather_rows", [p.step, places, x, rows]
    grid, constants = (ceil_div(words, local), p.num_rows, 1), {"LOCAL_SIZE": local, "W": words, "K": per_token}
    p.dispatch(name, buffers, grid, constants=constants)


def linear_by_id(
    p: Program, x: Buffer, matrix: ExpertMatrix, ids: Buffer, y: Buffer, *, own_rows: bool = False
) -> None:
    """y[T K, N] = W[ids[t, k]] x[T, C]; own_rows: x[T K, C], a row for each expert of a token. For programs of few
    rows, of which each has the bits that it has alone.
    """
    per_token = ids.shape[1]
    check_shapes("linear_by_id", x=(x.shape[1:], (matrix.columns,)), y=(y.shape[1:], (matrix.rows,)))
    form, constants = matvec_form(p, matrix.columns, 1)
    for slab, push, share in _slabs(matrix):
        p.dispatch(
            f"matvec{form}_experts_{matrix.layout}",
            [p.step, slab.buffer, x, y, ids],
            (ceil_div(matrix.rows, constants["ROW_LANES"] * constants["TN"]), p.num_rows, per_token),
            constants=constants,
            push=push | {"own_rows": int(own_rows)},
            work=2.0 * matrix.rows * matrix.columns * p.num_rows * per_token * share,
            label=f"matvec {matrix.name}",
        )


def expert_linear(
    p: Program, x: Buffer, matrix: ExpertMatrix, tiles: RowTiles, y: Buffer, *, half: HalfRows | None = None
) -> None:
    """y[S, N] = W x[S, C], of each row the W of its expert. half: holds x as halves; the product is one of halves
    then, unless the weights are of a layout that halves do not hold.
    """
    check_shapes("expert_linear", x=(x.shape[1:], (matrix.columns,)), y=(y.shape[1:], (matrix.rows,)))
    half = half_for(matrix, half)
    form, constants = half_matmul_form(p) if half else matmul_form(p)
    constants = constants | {"TM": tiles.rows}
    rows = half_words("expert_linear", half, matrix.columns) if half else x
    wide = constants["LOCAL_SIZE"] * constants.get("TN", 1)
    buffers = [rows, y, *([half.factors] if half else []), tiles.tiles]
    for slab, push, share in _slabs(matrix):
        tokens = p.num_rows * tiles.per_token * share
        for cut, count in bounded_rows(p, matrix.layout, matrix.columns, matrix.rows, tokens, wide):
            p.dispatch(
                f"matmul{form}_experts_{matrix.layout}",
                [p.step, slab.buffer, *buffers],
                (ceil_div(count, wide), tiles.count, 1),
                constants=constants,
                push={name: value + cut.get(name, 0) for name, value in push.items()} | {"rows": count},
                work=2.0 * count * matrix.columns * tokens,
                label=f"matmul {matrix.name}",
            )


def _slabs(matrix: ExpertMatrix) -> Iterator[tuple[Slab, dict[str, int], float]]:
    """(slab, push words of shaders/include/weights.glsl, its part of the work)."""
    for slab in matrix.slabs:
        push = {
            "w_offset": (slab.buffer.offset + LAYOUTS[matrix.layout].grid_words) // 4,
            "w_head": slab.buffer.offset // 4,
            "rows": matrix.rows,
            "K": matrix.columns,
            "first_row": 0,
            "N": matrix.rows,
            "add": 0,
            "first_expert": slab.first,
            "experts": slab.count,
            "expert_stride": matrix.words // 4,
            "own_rows": 0,
        }
        yield slab, push, slab.count / matrix.count


def add_experts(
    p: Program, y: Buffer, shared: Buffer, shares: Buffer, x: Buffer, ids: Buffer, tiles: RowTiles | None = None
) -> None:
    """x[T, D] += the rows of y[S, D] of each token's experts ids[T, K] and its row of shared[T, D], each times its
    share of shares[T, K + 1]. tiles: the rows lie in the places that it says; without, as t, k.
    """
    dim, per_token = x.shape[1], ids.shape[1]
    shapes = {
        "y": (y.shape[1:], (dim,)),
        "shared": (shared.shape[1:], (dim,)),
        "shares": (shares.shape[1:], (per_token + 1,)),
    }
    check_shapes("add_experts", **shapes)
    local = p.device.profile.local_size
    p.dispatch(
        "add_experts",
        [p.step, y, shared, shares, tiles.places if tiles else ids, x],
        (ceil_div(dim // 4, local), p.num_rows, 1),
        constants={"LOCAL_SIZE": local, "D": dim, "K": per_token, "GROUPED": int(tiles is not None)},
    )
