"""What the multi-token-prediction block has beside an attention layer's kernels."""

import numpy as np
import pytest

from tests.reference import blocks, mtp
from tests.shaders.half_rows import check_halves
from tests.shaders.run_kernel import ELEMENTWISE, REDUCTION, KernelRun, check, using_profile
from tests.shaders.test_matmul import LAYOUT_TYPES, lengths
from vkprefill.engine import kernels
from vkprefill.engine.halves import HalfRows
from vkprefill.engine.kept_rows import KEPT
from vkprefill.engine.sizes import MAX_CANDIDATES
from vkprefill.engine.step import StepWord
from vkprefill.errors import ShapeError

EPS = 1e-6
NO_ROW = 2**32 - 1
LEAST = np.finfo(np.float32).min


def inputs(tokens: int, dim: int) -> tuple[np.ndarray, ...]:
    """(embeddings, hidden rows, the row that waited, weights of both norms), rows from below sqrt(eps) up."""
    rng = np.random.default_rng(tokens + dim)
    e, h = rng.standard_normal((2, tokens, dim)) * np.exp(rng.uniform(-9, 5, (2, tokens, 1)))
    waited, (enorm, hnorm) = rng.standard_normal(dim), rng.uniform(0.2, 2.0, (2, dim))
    return tuple(x.astype(np.float32) for x in (e, h, waited, enorm, hnorm))


def expected(e, h, waited, enorm, hnorm) -> np.ndarray:
    e, h, waited, enorm, hnorm = (x.astype(np.float64) for x in (e, h, waited, enorm, hnorm))
    return mtp.block_input(e, mtp.rows_before(waited, h), enorm, hnorm, EPS)


def run_input(device, values, num_rows: int, half: bool) -> dict[str, np.ndarray]:
    tokens, dim = values[0].shape
    run = KernelRun(device, tokens, num_rows)
    e, h = run.input("e", values[0]), run.input("h", values[1])
    waited, enorm, hnorm = (
        run.weight(name, x) for name, x in zip(("waited", "enorm", "hnorm"), values[2:], strict=True)
    )
    into = HalfRows(run.output("words", dim, pad=True), run.output("factors")) if half else None
    y = run.scratch("y", num_rows, 2 * dim) if half else run.output("y", 2 * dim)
    kernels.mtp_input(run.program, e, h, waited, enorm, hnorm, y, eps=EPS, half=into)
    return run.finish()


@pytest.mark.parametrize("profile", ["cpu", "amd"])
@pytest.mark.parametrize(("tokens", "dim"), [(1, 4), (2, 1024), (63, 260), (64, 64), (65, 36), (7, 1028)])
def test_input(device, profile, tokens, dim):
    values = inputs(tokens, dim)
    with using_profile(device, profile):
        y = run_input(device, values, tokens + 3, half=False)["y"]
    for name, part in (("embedding", slice(0, dim)), ("hidden row", slice(dim, None))):
        check(f"{name} of T {tokens}, D {dim}, {profile}", y[:, part], expected(*values)[:, part], ELEMENTWISE)


@pytest.mark.parametrize("profile", ["cpu", "amd"])
@pytest.mark.parametrize(("tokens", "dim"), [(2, 4), (9, 260), (33, 1028), (3, 4096)])
def test_input_as_halves(device, profile, tokens, dim):
    values = inputs(tokens, dim)
    with using_profile(device, profile):
        out = run_input(device, values, tokens + 3, half=True)
    check_halves(f"input of T {tokens}, D {dim}, {profile}", out, expected(*values))


def test_no_row_before_the_first(device):
    e, _, _, enorm, hnorm = inputs(1, 64)
    y = run_input(device, (e, np.ones((1, 64), np.float32), np.zeros(64, np.float32), enorm, hnorm), 1, half=False)["y"]
    assert not y[0, 64:].any() and y[0, :64].all()


@pytest.mark.parametrize(("tokens", "dim"), [(1, 4), (5, 260), (64, 1028)])
def test_keep_row(device, tokens, dim):
    x = np.random.default_rng(dim).standard_normal((tokens, dim)).astype(np.float32)
    run = KernelRun(device, tokens, tokens + 2)
    whole = run.in_out("state", np.full(8 + dim + 4, 7, np.float32), by_row=False)
    kernels.keep_row(run.program, run.input("x", x), whole.part("kept", 8, (dim,)))
    state = run.finish()["state"]
    np.testing.assert_array_equal(state[8:-4], x[-1])
    assert (state[:8] == 7).all() and (state[-4:] == 7).all()


@pytest.mark.parametrize(("rows", "waiting"), [(1, 0), (3, 1), (8, 8), (2, 5)])
@pytest.mark.parametrize("dim", [4, 260, 1028])
def test_last_accepted(device, rows, waiting, dim):
    """Then this run's rows take the places of those of the one before; without `keep` they stay."""
    rng = np.random.default_rng(dim + rows)
    x, before = (rng.standard_normal((count, dim)).astype(np.float32) for count in (rows, KEPT))
    for keep in (True, False):
        run = KernelRun(device, rows, rows + 2 if rows < KEPT - 2 else rows, words={StepWord.WAITING: waiting})
        kept = run.in_out("kept", np.concatenate([np.full(8, 7.0), before.reshape(-1)]), by_row=False)
        state = run.in_out("state", np.full(12 + dim + 4, 7.0), by_row=False)
        kernels.last_accepted(
            run.program,
            kept.part("kept", 8, (KEPT, dim)),
            state.part("waited", 12, (dim,)),
            keep=run.input("x", x) if keep else None,
        )
        out = run.finish()
        want = before[waiting - 1] if waiting else np.full(dim, 7)
        np.testing.assert_array_equal(out["state"], np.concatenate([np.full(12, 7), want, np.full(4, 7)]))
        after = np.concatenate([x, before[rows:]]) if keep else before
        np.testing.assert_array_equal(out["kept"], np.concatenate([np.full(8, 7.0), after.reshape(-1)]))


def rows_of(device, x, data, weight_type, ids, part_rows=None, before=3) -> np.ndarray:
    run = KernelRun(device, 1)
    y = run.in_out("y", np.full((1, before + len(ids)), 5, np.float32), by_row=False)
    matrix = run.matrix("w", data, weight_type, part_rows=part_rows)
    given = run.input("ids", np.asarray(ids, np.uint32), by_row=False)
    kernels.matvec_rows(run.program, run.input("x", x), matrix, given, y, y_offset=before)
    y = run.finish()["y"][0]
    assert (y[:before] == 5).all()
    return y[before:]


@pytest.mark.parametrize("weight_type", LAYOUT_TYPES)
def test_rows_of_every_layout(device, weight_type):
    rng = np.random.default_rng(5)
    for k in lengths(weight_type):
        data = blocks.random_blocks(rng, 90, k, weight_type, 0.05)
        x = rng.standard_normal((1, k)).astype(np.float32)
        ids = [89, 0, 31, 32, NO_ROW, 64, 31]
        for part_rows in (None, 32):
            got = rows_of(device, x, data, weight_type, ids, part_rows)
            assert got[4] == LEAST
            wanted = x[0].astype(float) @ blocks.dequantize(data, weight_type).T
            there = [row for row in ids if row != NO_ROW]
            check(f"{weight_type}, K {k}", np.delete(got, 4), wanted[there], REDUCTION)


def test_rows_do_not_fit(device):
    with pytest.raises(ShapeError, match="do not fit"):
        run = KernelRun(device, 1)
        matrix = run.matrix("w", blocks.random_blocks(np.random.default_rng(1), 32, 32, "F16"), "F16")
        ids, y = run.input("ids", np.zeros(4, np.uint32), by_row=False), run.scratch("y", 1, 6)
        kernels.matvec_rows(run.program, run.scratch("x", 1, 32), matrix, ids, y, y_offset=3)


@pytest.mark.parametrize("row", [0, 2])
@pytest.mark.parametrize("k", [1, 10])
def test_next_draft(device, row, k):
    rng = np.random.default_rng(row)
    first_rows, ids, pairs = 40, np.array([300, 77, 123456], np.uint32), 5
    found = rng.integers(0, 43, (8, MAX_CANDIDATES, 2)).astype(np.uint32)
    found[0, :4, 1] = 42, 39, 40, NO_ROW
    rope = rng.standard_normal((8, pairs, 2)).astype(np.float32)
    run = KernelRun(device, 1, cache_len=17, num_candidates=k, step_role="in_out")
    out = run.in_out("drafts", np.full((7, 10, 2), 9, np.uint32), by_row=False)
    tokens = run.in_out("token_ids", np.full(4, 6, np.uint32), by_row=False)
    moved = run.in_out("rope", rope, by_row=False)
    kernels.next_draft(
        run.program,
        run.input("candidates", found, by_row=False),
        run.input("ids", ids, by_row=False),
        tokens,
        moved,
        out,
        row=row,
        first_rows=first_rows,
    )
    result = run.finish()
    where = found[0, :k, 1].tolist()
    wanted = [i if i < first_rows or i == NO_ROW else int(ids[i - first_rows]) for i in where]
    assert result["drafts"][row, :k, 1].tolist() == wanted and wanted[0] == 123456
    np.testing.assert_array_equal(result["drafts"][row, :k, 0], found[0, :k, 0])
    assert (result["drafts"][row, k:] == 9).all() and (np.delete(result["drafts"], row, 0) == 9).all()
    assert result["token_ids"].tolist() == [123456, 6, 6, 6]
    np.testing.assert_array_equal(result["rope"][0], rope[row + 1])
    np.testing.assert_array_equal(result["rope"][1:], rope[1:])
    assert result["step"][:4].tolist() == [1, 18, 0, k]


def test_no_room_for_the_row_after(device):
    run = KernelRun(device, 1)
    some = run.scratch("some", 8, 64, 2)
    with pytest.raises(ShapeError, match="next_draft: row 7"):
        kernels.next_draft(run.program, some, some, some, some, some, row=7, first_rows=4)
