"""A row rounded to halves with its power of two (include/half_row.glsl), by the gate of attention where it is open."""

import numpy as np
import pytest

from tests.shaders.half_rows import check_bits, half_output, half_rows_of
from tests.shaders.run_kernel import KernelRun, using_profile
from vkprefill.engine import kernels

OPEN = 100.0  # its sigmoid is 1 in float32


def rounded(device, x: np.ndarray, num_rows: int | None = None) -> dict[str, np.ndarray]:
    """The words and factors of x [T, K]."""
    run = KernelRun(device, len(x), num_rows)
    gates, half = run.input("gates", np.full((len(x), 2 * x.shape[1]), OPEN)), half_output(run, x.shape[1])
    kernels.attention_gate(run.program, gates, run.input("x", x), heads=1, half=half)
    return run.finish()


@pytest.mark.parametrize("profile", ["cpu", "amd"])
@pytest.mark.parametrize(("tokens", "width"), [(1, 4), (2, 1024), (3, 1028), (65, 36), (7, 9216), (2, 12288)])
def test_bit_for_bit(device, profile, tokens, width):
    rng = np.random.default_rng(width)
    x = (rng.standard_normal((tokens, width)) * np.exp(rng.uniform(-60, 60, (tokens, 1)))).astype(np.float32)
    x *= np.exp(rng.uniform(-15, 0, (1, width))).astype(np.float32)  # down to what are subnormal halves
    with using_profile(device, profile):
        check_bits(rounded(device, x, tokens + 2), x)


def test_greatest_and_least_rows(device):
    """Powers of two at the ends of what float32 has as normal numbers (a GPU may drop others); ties to even."""
    rows = [2.0**127, 3.4e38, 2.0**-111, 2.0**-112, 2.0**-124, 0.0, 1.0, 65504.0, 65520.0]
    x = np.array([[m, -m / 3, m * (0.5 + 2**-12), m * (0.5 + 3 * 2**-12)] for m in rows], np.float32)
    out = rounded(device, x)
    check_bits(out, x)
    assert np.isfinite(half_rows_of(out)).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows(device, bad):
    """Not as infinity, whose product with a query can mean "never attend to this key"; in no other row."""
    x = np.random.default_rng(7).standard_normal((5, 256)).astype(np.float32)
    x[2, 77] = bad
    halves = half_rows_of(rounded(device, x))
    assert np.isnan(halves[2, 77]) and np.isfinite(halves[[0, 1, 3, 4]]).all()
