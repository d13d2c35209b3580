"""Rows of halves, as kernels write them for products in half precision and as these read them."""

import numpy as np

from tests.reference import linear
from tests.shaders.run_kernel import ELEMENTWISE, FOREIGN, KernelRun, padded
from vkprefill.engine.halves import HalfRows

HALF_STEP = 2.0**-11  # half the distance between halves, of the less of them
UNUSED_WORDS = 16  # that a row of the engine's room has more than these products need


def half_input(run: KernelRun, x: np.ndarray) -> HalfRows:
    """The rows of x [T, K], rounded, where the engine has them: whole tiles of rows, in room for wider ones."""
    with np.errstate(over="ignore"):  # in a row that is not finite anyway
        halves, factors = linear.half_rows(x)
    words = np.full((padded(run.num_rows), x.shape[1] // 2 + UNUSED_WORDS), FOREIGN, np.uint32)
    words.reshape(-1)[: halves.size // 2] = halves.reshape(-1).view(np.uint32)
    return HalfRows(run.input("words", words, by_row=False), run.input("factors", factors[:, 0]))


def half_output(run: KernelRun, width: int) -> HalfRows:
    """Room for rows of this width, for half_rows_of and the checks."""
    return HalfRows(run.output("words", width // 2, pad=True), run.output("factors"))


def half_rows_of(out: dict[str, np.ndarray]) -> np.ndarray:
    """Halves [T, K] of what `finish` returned."""
    return np.ascontiguousarray(out["words"]).view(np.float16)


def check_bits(out: dict[str, np.ndarray], x: np.ndarray) -> None:
    """Halves and factors are those of the rows of x [T, K], bit for bit."""
    halves, factors = linear.half_rows(x)
    np.testing.assert_array_equal(half_rows_of(out).view(np.uint16), halves.view(np.uint16))
    np.testing.assert_array_equal(out["factors"], factors[:, 0].astype(np.float32))


def check_halves(case: str, out: dict[str, np.ndarray], expected: np.ndarray) -> None:
    """The nearest halves to values that are right as those of float32; expected: float64 [T, K]."""
    halves = half_rows_of(out).astype(float)
    greatest = np.abs(halves).max(axis=1)
    assert ((greatest >= 2**14) & (greatest <= 2**15)).all(), f"{case}: rows are not scaled"
    difference = np.abs(halves * out["factors"][:, None] - expected)
    limit = HALF_STEP * np.abs(expected) + ELEMENTWISE * np.sqrt(np.mean(expected**2, axis=1, keepdims=True))
    np.testing.assert_array_less(difference, limit, case)
