"""Products of halves: matmul_hybrid for halves, of rows rounded with their power of two.

Three references: the sums in float32 in the kernel's own order, equal bit for bit where weights are halves already; the
product of the same rounded operands in float64; and the exact product.
"""

import dataclasses
from unittest import mock

import numpy as np
import pytest

from tests.reference import blocks, linear
from tests.shaders.half_rows import half_input
from tests.shaders.run_kernel import PROFILES, REDUCTION, KernelRun, check, using_profile
from tests.shaders.test_matmul import lengths
from vkprefill.engine import kernels
from vkprefill.engine.halves import FLOAT_LAYOUTS, SHORT_RUN

MANY = SHORT_RUN + 1  # rows of a program from which its products are of halves
HALF = 1e-3  # ||difference|| / ||exact||: weights and activations of 11 bits. Measured: 3e-4
TYPES = [t for t in blocks.TYPES if t.lower() not in FLOAT_LAYOUTS]


def multiply(device, x, data, weight_type, **how):
    """x [T, K], rounded, by the matrix [N, K]: the same bits by the instruction for two products, where
    there is one, and by conversion.
    """
    y = _multiply(device, x, data, weight_type, **how)
    if device.abilities.has_dot2:
        with mock.patch.object(device, "abilities", dataclasses.replace(device.abilities, features=frozenset())):
            np.testing.assert_array_equal(_multiply(device, x, data, weight_type, **how), y)
    return y


def _multiply(device, x, data, weight_type, *, add=None, num_rows=None, part_rows=None):
    """add: what y holds before."""
    run = KernelRun(device, len(x), num_rows or max(len(x), MANY))
    matrix = run.matrix("w", data, weight_type, part_rows=part_rows)
    y = run.output("y", matrix.rows) if add is None else run.in_out("y", add)
    given = run.input("x", x, pad=True)
    kernels.linear(run.program, given, matrix, y, add=add is not None, half=half_input(run, x))
    return run.finish()["y"]


def check_both(case: str, got: np.ndarray, x: np.ndarray, weight: np.ndarray, before: np.ndarray | float = 0.0) -> None:
    """Against the product of the rounded operands, and the exact one."""
    check(f"{case}, operands rounded", got, linear.half_linear(x, weight) + before, REDUCTION)
    exact = linear.linear(x.astype(float), weight) + before
    error = np.linalg.norm(got - exact) / max(np.linalg.norm(exact), 1e-300)
    assert error <= HALF, f"{case}, exact: error {error:.2e}; limit {HALF:.0e}"


@pytest.mark.smoke
@pytest.mark.parametrize("weight_type", TYPES)
def test_types(device, weight_type):
    rng = np.random.default_rng(2)
    for k in lengths(weight_type):
        data = blocks.random_blocks(rng, 170, k, weight_type, 0.05)
        x = rng.standard_normal((67, k)).astype(np.float32)
        got = multiply(device, x, data, weight_type)
        check_both(f"{weight_type}, K {k}", got, x, blocks.dequantize(data, weight_type))


@pytest.mark.parametrize("weight_type", ["F32", "BF16"])
def test_weights_that_halves_do_not_hold_stay_float32(device, weight_type):
    rng = np.random.default_rng(2)
    data, x = blocks.random_blocks(rng, 70, 96, weight_type, 0.05), rng.standard_normal((19, 96)).astype(np.float32)
    expected = x.astype(float) @ blocks.dequantize(data, weight_type).T
    check(weight_type, multiply(device, x, data, weight_type), expected, REDUCTION / 10)


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize(
    ("tokens", "rows", "k"),
    [(2, 1, 32), (2, 31, 160), (63, 33, 224), (64, 64, 64), (65, 129, 96), (127, 100, 32), (200, 65, 352)],
)
def test_sizes(device, tokens, rows, k, add):
    rng = np.random.default_rng(rows)
    data = blocks.random_blocks(rng, rows, k, "Q8_0", 0.1)
    x, before = (rng.standard_normal((tokens, n)).astype(np.float32) for n in (k, rows))
    got = multiply(device, x, data, "Q8_0", add=before if add else None, num_rows=tokens + 9)
    check_both(f"T {tokens}, N {rows}, K {k}, add {add}", got, x, blocks.dequantize(data, "Q8_0"), add * before)


@pytest.mark.parametrize("local", [16, 32, 48, 256])
@pytest.mark.parametrize("tm", [4, 64])
def test_whatever_the_subgroups(device, local, tm):
    """Quarters of the workgroup that are less than a subgroup, one, several, and no whole number of them."""
    rng = np.random.default_rng(local)
    data = blocks.random_blocks(rng, 300, 96, "Q8_0", 0.1)
    x = rng.standard_normal((75, 96)).astype(np.float32)
    with using_profile(device, dataclasses.replace(PROFILES["amd"], half_matmul=(local, tm))):
        got = multiply(device, x, data, "Q8_0")
    check_both(f"{local}, {tm}", got, x, blocks.dequantize(data, "Q8_0"))


def test_parts(device):
    rng = np.random.default_rng(4)
    data = blocks.random_blocks(rng, 150, 256, "Q4_K")
    x, before = rng.standard_normal((40, 256)).astype(np.float32), rng.standard_normal((40, 150)).astype(np.float32)
    got = multiply(device, x, data, "Q4_K", add=before, part_rows=64)
    check_both("Q4_K in 3 parts", got, x, blocks.dequantize(data, "Q4_K"), before.astype(float))


def test_sums_bit_for_bit(device):
    """Float32 sums of exact products, column after column: two multiply-adds for a pair, low half first. Weights that
    are halves are not rounded, so nothing else is left to differ.
    """
    rng = np.random.default_rng(5)
    data = blocks.random_blocks(rng, 70, 352, "F16", 0.05)
    x = (rng.standard_normal((37, 352)) * np.exp(rng.uniform(-9, 9, (37, 1)))).astype(np.float32)
    halves, factors = linear.half_rows(x)
    x32, weight = halves.astype(np.float32), blocks.dequantize(data, "F16").astype(np.float32)
    sums = np.zeros((37, 70), np.float32)
    for k in range(352):
        sums += x32[:, k, None] * weight[:, k]
    np.testing.assert_array_equal(multiply(device, x, data, "F16"), sums * factors.astype(np.float32))


def test_outliers(device):
    """Activations that halves alone would not hold: rows far above 65,504 and far below 6e-8, channels 1,000 times the
    others, a row of zeros, denormal numbers. Each row is judged by itself.
    """
    rng = np.random.default_rng(6)
    data = blocks.random_blocks(rng, 70, 256, "Q4_K", 0.05)
    x = rng.standard_normal((8, 256))
    x[:, [3, 200]] *= 1000
    x = (x * np.array([1, 65504, 1e30, 1e-9, 1e-30, 1e-36, 0, 70])[:, None]).astype(np.float32)
    weight, got = blocks.dequantize(data, "Q4_K"), multiply(device, x, data, "Q4_K")
    for t in range(len(x)):
        check_both(f"row {t}", got[t : t + 1], x[t : t + 1], weight)
    assert not got[6].any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows(device, bad):
    """In every product with its row, and in no other."""
    rng = np.random.default_rng(7)
    data, x = blocks.random_blocks(rng, 70, 256, "Q4_K", 0.05), rng.standard_normal((5, 256)).astype(np.float32)
    x[2, 77] = bad
    run = KernelRun(device, 5, MANY)
    matrix, y = run.matrix("w", data, "Q4_K"), run.scratch("y", MANY, 70)
    kernels.linear(run.program, run.input("x", x, pad=True), matrix, y, half=half_input(run, x))
    run.program.run()
    finite = np.isfinite(y.read()[:5])
    assert not finite[2].any() and finite[[0, 1, 3, 4]].all()
