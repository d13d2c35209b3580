import numpy as np
import pytest

from tests.shaders.run_kernel import KernelRun

SIZES = [1, 63, 64, 65, 255, 256, 257, 100_003]


@pytest.mark.smoke
@pytest.mark.parametrize("count", SIZES)
def test_copy(device, count):
    rng = np.random.default_rng(count)
    source = rng.integers(0, 2**32, count + 11, np.uint32)  # bit patterns of NaN and denormal numbers among them
    target = rng.integers(0, 2**32, count + 9, np.uint32)
    run = KernelRun(device, 1)
    run.program.copy(run.input("source", source, by_row=False), run.in_out("target", target, by_row=False), 7, 5, count)
    expected = target.copy()
    expected[5 : 5 + count] = source[7 : 7 + count]
    np.testing.assert_array_equal(run.finish()["target"], expected)


@pytest.mark.parametrize("value", [0, 0x7F800001, 2**32 - 1])
@pytest.mark.parametrize("count", SIZES)
def test_fill(device, count, value):
    run = KernelRun(device, 1)
    run.program.fill(run.in_out("target", np.full(count, 9, np.uint32), by_row=False), value)
    assert (run.finish()["target"] == value).all()


def test_more_items_than_the_grid_has_invocations(device):
    """16,384 workgroups of 64 take 1,048,576 items in one stride."""
    count = 3 * (1 << 20) + 77
    source = np.arange(count, dtype=np.uint32)
    run = KernelRun(device, 1)
    given, copied, filled = (
        run.input("source", source, by_row=False),
        *(run.output(name, count, by_row=False) for name in ("copied", "filled")),
    )
    run.program.copy(given, copied, 0, 0, count)
    run.program.fill(filled, 5)
    out = run.finish()
    np.testing.assert_array_equal(out["copied"].view(np.uint32), source)
    assert (out["filled"].view(np.uint32) == 5).all()
