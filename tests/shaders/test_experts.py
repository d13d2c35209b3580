"""A mixture's kernels: who a token is sent to, where rows lie, products with the matrices of experts, the sum."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from tests.reference import activations, blocks, experts
from tests.reference.linear import half_rows
from tests.shaders.half_rows import check_halves, half_output
from tests.shaders.run_kernel import ELEMENTWISE, REDUCTION, KernelRun, check, using_profile
from tests.shaders.run_kernel import PROFILES as BY_NAME
from vkprefill.engine import kernels
from vkprefill.engine.expert_matrix import ExpertMatrix, Slab, expert_words, most_tiles
from vkprefill.engine.halves import HalfRows
from vkprefill.engine.kernels.matrix import bounded_rows
from vkprefill.gguf.grids import grid_words
from vkprefill.gguf.quants import LAYOUTS, layout_of, pack_rows

PROFILES = ("cpu", "cpu-wide", "amd", "nvidia")
# Of every kind: units of 64, 128 and 256 weights, floats, planes of bits, grids.
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q5_1", "IQ4_XS", "IQ2_XS", "IQ3_S", "MXFP4", "Q2_K", "Q3_K", "Q4_K", "Q6_K")


def route(device, logits, h, gate, per_token, num_rows=None):
    tokens, run = len(logits), KernelRun(device, len(logits), num_rows)
    ids = run.output("ids", per_token)
    kernels.route(
        run.program,
        run.input("logits", logits),
        run.input("h", h),
        run.weight("gate", gate),
        ids,
        run.output("shares", per_token + 1),
    )
    out = run.finish()
    return out["ids"].view(np.uint32).reshape(tokens, per_token), out["shares"]


@pytest.mark.parametrize("profile", ["cpu", "amd"])
@pytest.mark.parametrize(
    ("tokens", "count", "per_token", "dim"),
    [
        (1, 256, 8, 2048),
        (5, 12, 3, 64),
        (3, 7, 7, 36),
        (65, 205, 10, 132),
        (2, 512, 32, 4),
        (4, 1, 1, 64),
        (7, 33, 1, 260),
    ],
)
def test_route(device, profile, tokens, count, per_token, dim):
    rng = np.random.default_rng(count)
    logits = (rng.standard_normal((tokens, count)) * 3).astype(np.float32)
    h, gate = (rng.standard_normal(shape).astype(np.float32) for shape in ((tokens, dim), (dim,)))
    with using_profile(device, profile):
        ids, shares = route(device, logits, h, gate, per_token, tokens + 2)
    probs = experts.probabilities(logits.astype(float))
    choice = experts.chosen(probs, per_token)
    np.testing.assert_array_equal(ids, choice)
    expected = experts.shares(np.take_along_axis(probs, choice, -1))
    gates = activations.sigmoid(h.astype(float) @ gate.astype(float))
    check("shares", shares, np.column_stack([expected, gates]), ELEMENTWISE)


def test_equal_logits_far_from_zero(device):
    """The lower numbers; whatever the logits are, ids are those of experts."""
    logits = np.full((4, 100), -1e30, np.float32)
    logits[0, ::-7] = 1e30
    logits[1] = np.tile(np.float32([5, 5, 6, 5]), 25)
    logits[2, 3], logits[3] = np.nan, np.nan
    h, gate = np.zeros((4, 64), np.float32), np.zeros(64, np.float32)
    ids, shares = route(device, logits, h, gate, 5)
    np.testing.assert_array_equal(ids[0], [1, 8, 15, 22, 29])
    np.testing.assert_array_equal(ids[1], [2, 6, 10, 14, 18])
    np.testing.assert_allclose(shares[:2, :5], 0.2, rtol=1e-6)
    assert (ids < 100).all() and (shares[:, 5] == 0.5).all()


def grouped(choice: np.ndarray, count: int, tile: int) -> tuple[np.ndarray, list[tuple[int, int, int]]]:
    """Places [T, K] of rows sorted by expert, then by token, and the tiles of at most `tile` of one's rows."""
    places = np.empty(choice.size, np.int64)
    places[np.argsort(choice.reshape(-1), kind="stable")] = np.arange(choice.size)
    tiles, first = [], 0
    for expert, rows in enumerate(np.bincount(choice.reshape(-1), minlength=count)):
        tiles += [(expert, first + r, min(tile, rows - r)) for r in range(0, rows, tile)]
        first += rows
    return places.reshape(choice.shape), tiles


def choices(rng, tokens: int, count: int, per_token: int) -> np.ndarray:
    """Some experts are favourites, some get nothing."""
    return np.argsort(rng.random((tokens, count)) ** np.linspace(1, 6, count), axis=-1)[:, :per_token].astype(np.uint32)


@pytest.mark.parametrize(
    ("tokens", "count", "per_token"),
    [(1, 12, 3), (9, 7, 7), (40, 256, 8), (130, 12, 3), (65, 512, 10), (33, 1, 1), (40, 205, 8)],
)
def test_places_and_tiles(device, tokens, count, per_token):
    choice = choices(np.random.default_rng(tokens), tokens, count, per_token)
    run = KernelRun(device, tokens, tokens + 7)
    ids = run.input("ids", choice)
    tile = device.profile.expert_rows
    most = most_tiles(run.num_rows * per_token, count, tile)
    tiles = kernels.RowTiles(run.output("places", per_token), run.output("tiles", most, 4, by_row=False), tile, most)
    kernels.group_rows(run.program, ids, tiles, count)
    out = {name: values.view(np.uint32) for name, values in run.finish().items()}
    places, wanted = grouped(choice, count, tile)
    np.testing.assert_array_equal(out["places"], places)
    np.testing.assert_array_equal(out["tiles"][: len(wanted), :3], wanted)
    assert not out["tiles"][len(wanted) :].any() and not out["tiles"][:, 3].any()


def tiles_of(run: KernelRun, choice: np.ndarray, count: int) -> tuple[kernels.RowTiles, np.ndarray]:
    """On the device, with none in use at the end; the places."""
    tile = run.device.profile.expert_rows
    places, tiles = grouped(choice, count, tile)
    most = most_tiles(run.num_rows * choice.shape[1], count, tile)
    table = np.zeros((most, 4), np.uint32)
    table[: len(tiles), :3] = tiles
    given = run.input("places", places.astype(np.uint32)), run.input("tiles", table, by_row=False)
    return kernels.RowTiles(*given, tile, most), places


@pytest.mark.parametrize("profile", ["cpu", "amd"])
@pytest.mark.parametrize(("tokens", "per_token", "dim"), [(1, 1, 32), (5, 3, 160), (70, 2, 2048)])
def test_rows_in_their_places(device, profile, tokens, per_token, dim):
    rng = np.random.default_rng(dim)
    choice, x = choices(rng, tokens, 6, per_token), rng.standard_normal((tokens, dim)).astype(np.float32)
    with using_profile(device, profile):
        run = KernelRun(device, tokens, tokens + 3)
        tiles, places = tiles_of(run, choice, 6)
        kernels.gather_rows(
            run.program, tiles.places, run.input("x", x), run.output("rows", choice.size, dim, by_row=False), dim
        )
        halves, factors = half_rows(x)
        given = HalfRows(run.input("halves", halves.view(np.uint32)), run.input("factors", factors[:, 0]))
        words = run.output("words", choice.size, dim // 2, by_row=False)
        target = HalfRows(words, run.output("row_factors", choice.size, by_row=False))
        kernels.gather_rows(run.program, tiles.places, given, target, dim)
        out = run.finish()
    for t, k in np.ndindex(choice.shape):
        np.testing.assert_array_equal(out["rows"][places[t, k]], x[t])
        np.testing.assert_array_equal(out["words"][places[t, k]].view(np.float16), halves[t])
        assert out["row_factors"][places[t, k]] == factors[t, 0]


def matrices(
    run: KernelRun, rng, weight_type: str, sizes: tuple[int, int, int], most: int
) -> tuple[ExpertMatrix, np.ndarray]:
    """(on the device in slabs of at most `most`, float64 [X, rows, columns])."""
    count, rows, columns = sizes
    kind = GGMLQuantizationType[weight_type]
    data = blocks.random_blocks(rng, count * rows, columns, weight_type, 0.05).reshape(count, rows, -1)
    words, slabs = expert_words(kind, rows, columns), []
    for first in range(0, count, most):
        experts = [pack_rows(np.ascontiguousarray(part), kind) for part in data[first : first + most]]
        packed = np.concatenate([grid_words(kind), *experts])
        slabs.append(Slab(first, len(data[first : first + most]), run.weight(f"w[{first}:]", packed)))
    values = blocks.dequantize(data.reshape(count * rows, -1), weight_type).reshape(sizes)
    return ExpertMatrix("w", layout_of(kind).name, count, rows, columns, words, tuple(slabs)), values


def columns_for(weight_type: str) -> int:
    block = GGML_QUANT_SIZES[GGMLQuantizationType[weight_type]][0]
    return {1: 48, 32: 352, 256: 768}[block]


@pytest.mark.parametrize("weight_type", TYPES)
@pytest.mark.parametrize("profile", PROFILES)
def test_products_by_id(device, profile, weight_type):
    """In slabs; the bits of a token do not depend on those beside it."""
    rng, tokens, per_token = np.random.default_rng(5), 5, 3
    sizes = 7, 48, columns_for(weight_type)
    choice = choices(rng, tokens, 7, per_token)
    x = rng.standard_normal((tokens * per_token, sizes[2])).astype(np.float32)

    def multiply(some: slice, num_rows: int, own_rows: bool):
        own, ids = np.random.default_rng(6), choice[some]
        run = KernelRun(device, len(ids), num_rows)
        matrix, values = matrices(run, own, weight_type, sizes, 3)
        rows = (x.reshape(tokens, per_token, -1)[some] if own_rows else x[:tokens][some]).reshape(-1, x.shape[1])
        given = run.input("x", rows, by_row=False)
        y = run.output("y", len(ids) * per_token, matrix.rows, by_row=False)
        kernels.linear_by_id(run.program, given, matrix, run.input("ids", ids), y, own_rows=own_rows)
        want = [
            values[e] @ rows[i if own_rows else i // per_token].astype(float) for i, e in enumerate(ids.reshape(-1))
        ]
        return run.finish()["y"], np.array(want)

    with using_profile(device, profile):
        for own_rows in (False, True):
            got, expected = multiply(slice(0, tokens), tokens + 2, own_rows)
            check(f"by id {weight_type}, {profile}, own rows {own_rows}", got, expected, REDUCTION)
            alone = np.concatenate([multiply(slice(t, t + 1), 1, own_rows)[0] for t in range(tokens)])
            np.testing.assert_array_equal(alone, got)


@pytest.mark.parametrize("weight_type", TYPES)
@pytest.mark.parametrize("profile", PROFILES)
def test_products_of_grouped_rows(device, profile, weight_type):
    """Experts with no row, with one, with several tiles; slabs of some of them."""
    with using_profile(device, profile):
        check_grouped(device, weight_type, 48, f"grouped {weight_type}, {profile}")


@pytest.mark.parametrize("profile", PROFILES)
def test_products_in_pieces(device, profile):
    """Where a matrix is more work than a submission may be, each dispatch takes what a workgroup computes."""
    with using_profile(device, replace(BY_NAME[profile], submission_flop=1.0)) as chosen:
        check_grouped(device, "Q4_K", 300, f"pieces, {profile}")
        (local, _, tn), program = chosen.matmul, SimpleNamespace(device=device)
        pieces = list(bounded_rows(program, "q4_k", 768, 300, 41.0, local * tn))
    wide, row_words = local * tn, 3 * LAYOUTS["q4_k"].unit_words
    assert [(cut["first_row"], rows) for cut, rows in pieces] == [(n, min(wide, 300 - n)) for n in range(0, 300, wide)]
    assert all(cut["w_offset"] == cut["first_row"] * row_words // 4 for cut, _ in pieces)


def check_grouped(device, weight_type: str, num_rows: int, case: str) -> None:
    rng, tokens, per_token, count = np.random.default_rng(7), 41, 3, 7
    choice = choices(rng, tokens, count, per_token)
    choice[:, 0] = np.where(choice == 2, 5, choice)[:, 0] if (choice[:, 1:] != 5).all() else choice[:, 0]
    run = KernelRun(device, tokens, tokens + 9)
    matrix, values = matrices(run, rng, weight_type, (count, num_rows, columns_for(weight_type)), 3)
    tiles, places = tiles_of(run, choice, count)
    rows = rng.standard_normal((choice.size + tiles.rows, matrix.columns)).astype(np.float32)
    y = run.output("y", choice.size, matrix.rows, by_row=False)
    kernels.expert_linear(run.program, run.input("rows", rows, by_row=False), matrix, tiles, y)
    got = run.finish()["y"]
    of_place = np.empty(choice.size, int)
    of_place[places.reshape(-1)] = choice.reshape(-1)
    expected = np.einsum("pnk,pk->pn", values[of_place], rows[: choice.size].astype(float))
    check(case, got, expected, REDUCTION)


@pytest.mark.parametrize("weight_type", [t for t in TYPES if t not in ("F32", "BF16")])
def test_products_of_grouped_halves(device, weight_type):
    rng, tokens, per_token, count = np.random.default_rng(8), 41, 3, 7
    choice = choices(rng, tokens, count, per_token)
    run = KernelRun(device, tokens, tokens + 9)
    matrix, values = matrices(run, rng, weight_type, (count, 40, columns_for(weight_type)), 4)
    tiles, places = tiles_of(run, choice, count)
    size = choice.size + tiles.rows
    rows = rng.standard_normal((size, matrix.columns)) * np.exp(3 * rng.standard_normal((size, 1)))
    halves, factors = half_rows(rows)
    words = run.input("halves", halves.view(np.uint32), by_row=False)
    given = HalfRows(words, run.input("factors", factors[:, 0], by_row=False))
    y = run.output("y", choice.size, matrix.rows, by_row=False)
    unread = run.input("rows", np.full(rows.shape, np.nan, np.float32), by_row=False)
    kernels.expert_linear(run.program, unread, matrix, tiles, y, half=given)
    got = run.finish()["y"]
    of_place = np.empty(choice.size, int)
    of_place[places.reshape(-1)] = choice.reshape(-1)
    rounded = values.astype(np.float16).astype(float)
    expected = np.einsum("pnk,pk->pn", rounded[of_place], (halves.astype(float) * factors)[: choice.size])
    size = np.abs(rows[: choice.size]).max(1, keepdims=True)
    check(f"halves {weight_type}", got / size, expected / size, REDUCTION)


@pytest.mark.parametrize("profile", ["cpu", "amd"])
@pytest.mark.parametrize(("tokens", "per_token", "width"), [(3, 8, 512), (5, 3, 64), (33, 2, 96)])
def test_swiglu_of_several_rows(device, profile, tokens, per_token, width):
    """As many of each token; the rows of tokens that are not there stay."""
    rng = np.random.default_rng(width)
    gate, up = rng.standard_normal((2, tokens, per_token, width)).astype(np.float32)
    with using_profile(device, profile):
        run = KernelRun(device, tokens, tokens + 2)
        buffers = run.input("up", up), run.in_out("gate", gate)
        shape = run.num_rows * per_token, width
        kernels.swiglu(run.program, *(b.part(b.label, 0, shape) for b in buffers), rows_of_token=per_token)
        got = run.finish()["gate"]
        halves = KernelRun(device, tokens * per_token)
        halves.program.num_rows = tokens * per_token
        target = half_output(halves, width)
        flat = halves.input("up", up.reshape(-1, width)), halves.input("gate", gate.reshape(-1, width))
        kernels.swiglu(halves.program, *flat, target)
        out = halves.finish()
    expected = activations.swiglu(gate.astype(float), up.astype(float))
    check("swiglu", got, expected, ELEMENTWISE)
    check_halves("swiglu", out, expected.reshape(-1, width))


@pytest.mark.parametrize("in_places", [False, True])
@pytest.mark.parametrize("profile", ["cpu", "amd"])
@pytest.mark.parametrize(("tokens", "per_token", "dim"), [(1, 8, 2048), (5, 3, 36), (70, 1, 128)])
def test_sum(device, profile, tokens, per_token, dim, in_places):
    rng = np.random.default_rng(dim)
    choice = choices(rng, tokens, 9, per_token)
    y = rng.standard_normal((choice.size, dim)).astype(np.float32)
    shared, x = rng.standard_normal((2, tokens, dim)).astype(np.float32)
    shares = rng.random((tokens, per_token + 1)).astype(np.float32)
    with using_profile(device, profile):
        run = KernelRun(device, tokens, tokens + 3)
        tiles, places = tiles_of(run, choice, 9)
        buffers = run.input("y", y, by_row=False), run.input("shared", shared), run.input("shares", shares)
        stream = run.in_out("x", x)
        kernels.add_experts(run.program, *buffers, stream, run.input("ids", choice), tiles if in_places else None)
        got = run.finish()["x"]
    at = places if in_places else np.arange(choice.size).reshape(choice.shape)
    routed = experts.weighted(y.astype(float)[at], shares[:, :-1].astype(float))
    check("sum", got, x + routed + shared * shares[:, -1:].astype(float), ELEMENTWISE)
