"""Rows of points, read and changed in place: bits where nothing is computed, and nothing else touched."""

import numpy as np
import pytest

from tests.shaders.run_kernel import ELEMENTWISE, KernelRun, check, using_profile
from vkprefill.engine import kernels
from vkprefill.engine.kernels.points import ADD, KEEP, SCALE, SET
from vkprefill.engine.kernels.rows import NO_ROW
from vkprefill.engine.points import Rows, whole_rows
from vkprefill.engine.step import StepWord
from vkprefill.errors import ShapeError

# heads, width, head stride, row stride, offset: whole rows, each second part of a head, single numbers, a part of a row
PLACES = [(1, 260, 260, 260, 0), (3, 20, 40, 120, 0), (7, 1, 2, 14, 1), (2, 36, 36, 200, 64)]


def places(rows: int, heads: int, width: int, head_stride: int, row_stride: int, offset: int) -> np.ndarray:
    """int [rows, heads width]: words of the buffer."""
    t, h, i = np.ogrid[:rows, :heads, :width]
    return (offset + t * row_stride + h * head_stride + i).reshape(rows, -1)


def any_bits(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(0, 2**32, shape, np.uint32).view(np.float32)  # NaN among them


@pytest.mark.parametrize("profile", ["cpu", "amd"])
@pytest.mark.parametrize("kept_row", [None, 5])
@pytest.mark.parametrize(("count", "spare"), [(1, 0), (7, 3), (33, 1)])
@pytest.mark.parametrize("place", PLACES)
def test_record_rows(device, profile, kept_row, count, spare, place):
    """The rows asked for, in any order, as bits; other rows of the target stay."""
    rng = np.random.default_rng(count)
    heads, width, head_stride, row_stride, offset = place
    first = kept_row or 0
    x, y = any_bits(rng, count + spare + first + 1, row_stride), any_bits(rng, count + 2, heads * width)
    rows = rng.permutation(count + 2)[:count].astype(np.uint32)
    rows[2::3] = NO_ROW
    with using_profile(device, profile):
        run = KernelRun(device, count, count + spare, words={StepWord.KEPT_ROW: kept_row or 77})
        given, found = run.input("x", x, by_row=False), run.in_out("y", y, by_row=False)
        point = Rows(given, heads, width, row_stride, head_stride, offset, kept=kept_row is not None)
        kernels.record_rows(run.program, run.input("rows", rows), point, found)
        got = run.finish()["y"].view(np.uint32)
    want, words = y.view(np.uint32).copy(), x.reshape(-1).view(np.uint32)[places(len(x) - 1, *place)]
    for t, row in enumerate(rows):
        if row != NO_ROW:
            want[row] = words[first + t]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("profile", ["cpu", "amd"])
@pytest.mark.parametrize("op", [ADD, SCALE, SET])
@pytest.mark.parametrize("kept_row", [None, 5])
@pytest.mark.parametrize(("count", "spare"), [(1, 0), (7, 3), (33, 1)])
@pytest.mark.parametrize("place", PLACES)
def test_edit_rows(device, profile, op, kept_row, count, spare, place):
    """Values of KEEP, tokens without a row and what lies between the heads stay, bit for bit."""
    rng = np.random.default_rng(count + op)
    heads, width, head_stride, row_stride, offset = place
    first = kept_row or 0
    x = rng.standard_normal((count + spare + first + 1, row_stride)).astype(np.float32)
    values = rng.standard_normal((4, heads * width)).astype(np.float32)
    kept = rng.random(values.shape) < 0.2
    values.view(np.uint32)[kept] = KEEP
    rows = rng.integers(0, 4, count).astype(np.uint32)
    rows[1::3] = NO_ROW
    want, at = x.astype(np.float64).reshape(-1), places(len(x) - 1, *place)
    untouched = np.ones(x.size, bool)
    for t, row in enumerate(rows):
        if row == NO_ROW:
            continue
        chosen = ~kept[row]
        where, by = at[first + t][chosen], values[row][chosen].astype(np.float64)
        untouched[where] = False
        want[where] = want[where] + by if op == ADD else want[where] * by if op == SCALE else by
    x.reshape(-1).view(np.uint32)[np.flatnonzero(untouched)[::7]] = 0x7FA00003  # what stays may be anything
    with using_profile(device, profile):
        run = KernelRun(device, count, count + spare, words={StepWord.KEPT_ROW: kept_row or 77})
        found, by = run.in_out("x", x, by_row=False), run.input("values", values, by_row=False)
        point = Rows(found, heads, width, row_stride, head_stride, offset, kept=kept_row is not None)
        kernels.edit_rows(run.program, run.input("rows", rows), by, point, op)
        got = run.finish()["x"].reshape(-1)
    np.testing.assert_array_equal(got[untouched].view(np.uint32), x.reshape(-1)[untouched].view(np.uint32))
    if not untouched.all():
        check("edit_rows", got[~untouched], want[~untouched], ELEMENTWISE)


@pytest.mark.parametrize("op", [ADD, SCALE, SET])
def test_what_is_not_finite(device, op):
    """NaN and infinity of the rows are as arithmetic has them; a value that is set takes their place."""
    x = np.array([[np.nan, np.inf, -np.inf, -0.0, 1e-40, 3.0]], np.float32)
    values = np.array([[2.0, 2.0, 2.0, 2.0, 0.0, 2.0]], np.float32)
    values.view(np.uint32)[0, 3:5] = KEEP
    run = KernelRun(device, 1)
    found = run.in_out("x", x)
    rows = run.input("rows", np.zeros(1, np.uint32))
    kernels.edit_rows(run.program, rows, run.input("values", values), whole_rows(found), op)
    got = run.finish()["x"][0]
    assert got[3:5].view(np.uint32).tolist() == x[0, 3:5].view(np.uint32).tolist()
    want = {ADD: [np.nan, np.inf, -np.inf, 5], SCALE: [np.nan, np.inf, -np.inf, 6], SET: [2, 2, 2, 2]}[op]
    np.testing.assert_array_equal(got[[0, 1, 2, 5]], np.array(want, np.float32))


@pytest.mark.parametrize("profile", ["cpu", "amd"])
@pytest.mark.parametrize(("count", "spare", "dim"), [(1, 0, 4), (7, 3, 260), (33, 1, 1028)])
def test_add_rows(device, profile, count, spare, dim):
    rng = np.random.default_rng(dim)
    x, y = (rng.standard_normal((count, dim)).astype(np.float32) for _ in range(2))
    with using_profile(device, profile):
        run = KernelRun(device, count, count + spare)
        found = run.in_out("x", x)
        kernels.add_rows(run.program, run.input("y", y), found)
        got = run.finish()["x"]
    np.testing.assert_array_equal(got, x + y)  # one rounding


def test_shapes_that_do_not_fit_are_refused(device):
    run = KernelRun(device, 2)
    x, y = (run.input(name, np.zeros((2, dim), np.float32)) for name, dim in (("x", 8), ("y", 4)))
    rows = run.input("rows", np.zeros(2, np.uint32))
    with pytest.raises(ShapeError, match="record_rows: y has shape"):
        kernels.record_rows(run.program, rows, whole_rows(x), y)
    with pytest.raises(ShapeError, match="edit_rows: values has shape"):
        kernels.edit_rows(run.program, rows, y, whole_rows(x), SET)
    with pytest.raises(ShapeError, match="add_rows: y has shape"):
        kernels.add_rows(run.program, y, x)
