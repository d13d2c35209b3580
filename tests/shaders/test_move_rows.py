"""Rows of one buffer to places in another: bits, whatever they stand for, and nothing else."""

import numpy as np
import pytest

from tests.shaders.run_kernel import KernelRun, using_profile
from vkprefill.engine import kernels
from vkprefill.engine.kernels.rows import NO_ROW
from vkprefill.errors import ShapeError


@pytest.mark.parametrize("profile", ["cpu", "amd"])
@pytest.mark.parametrize(
    ("count", "num_x", "num_y", "dim"), [(1, 1, 1, 4), (3, 7, 5, 260), (33, 40, 64, 1028), (64, 64, 64, 256)]
)
def test_rows_go_where_the_pairs_say(device, profile, count, num_x, num_y, dim):
    """Some pairs move nothing; pairs after those in use, and rows that nobody asks for, stay as they are."""
    rng = np.random.default_rng(count + dim)
    x, y = (rng.integers(0, 2**32, (n, dim), np.uint32).view(np.float32) for n in (num_x, num_y))  # NaN among them
    pairs = np.stack([rng.integers(0, num_x, count), rng.permutation(num_y)[:count]], axis=-1).astype(np.uint32)
    pairs[1::5, 0] = NO_ROW
    with using_profile(device, profile):
        run = KernelRun(device, count, count + 3)
        given, found = run.input("x", x, by_row=False), run.in_out("y", y, by_row=False)
        kernels.move_rows(run.program, run.input("pairs", pairs), given, found)
        got = run.finish()["y"]
    want = y.view(np.uint32).copy()
    for source, target in pairs:
        if source != NO_ROW:
            want[target] = x.view(np.uint32)[source]
    np.testing.assert_array_equal(got.view(np.uint32), want)


def test_rows_of_another_width_are_refused(device):
    run = KernelRun(device, 2)
    x, y = (run.input(name, np.zeros((2, dim), np.float32)) for name, dim in (("x", 8), ("y", 4)))
    with pytest.raises(ShapeError, match="move_rows: y has shape"):
        kernels.move_rows(run.program, run.input("pairs", np.zeros((2, 2), np.uint32)), x, y)
