import numpy as np
import pytest

from tests.reference import activations
from tests.shaders.run_kernel import ELEMENTWISE, KernelRun, check, using_profile
from vkprefill.engine import kernels
from vkprefill.engine.halves import HalfRows


@pytest.mark.smoke
@pytest.mark.parametrize("profile", ["cpu", "amd"])
@pytest.mark.parametrize(
    ("tokens", "width"), [(1, 3584), (2, 4), (63, 260), (64, 96), (65, 36), (127, 132), (200, 100)]
)
def test_rows(device, profile, tokens, width):
    rng = np.random.default_rng(width)
    gate, up = (rng.standard_normal((2, tokens, width)) * np.exp(rng.uniform(-4, 4, (2, tokens, 1)))).astype(np.float32)
    gate[0, :2] = -100, 100  # beyond +-88, where e^x overflows
    with using_profile(device, profile):
        run = KernelRun(device, tokens, tokens + 2)
        kernels.swiglu(run.program, run.input("up", up), run.in_out("gate", gate))
        got = run.finish()["gate"]
    check(
        f"swiglu T {tokens}, F {width}, {profile}",
        got,
        activations.swiglu(gate.astype(float), up.astype(float)),
        ELEMENTWISE,
    )


HALF_STEP = 2.0**-11  # half the distance between halves, of the less of them


@pytest.mark.parametrize("profile", ["cpu", "amd"])
@pytest.mark.parametrize(("tokens", "width"), [(2, 4), (63, 260), (3, 3584), (2, 9216), (2, 12288)])
def test_as_halves(device, profile, tokens, width):
    """The nearest halves to a value that is right as one of float32: the gate is left as it was."""
    rng = np.random.default_rng(width)
    gate, up = (rng.standard_normal((2, tokens, width)) * np.exp(rng.uniform(-4, 4, (2, tokens, 1)))).astype(np.float32)
    gate[0, :2] = -100, 100
    with using_profile(device, profile):
        run = KernelRun(device, tokens, tokens + 2)
        half = HalfRows(run.output("words", width // 2, pad=True), run.output("factors"))
        kernels.swiglu(run.program, run.input("up", up), run.input("gate", gate), half)
        out = run.finish()
    expected = activations.swiglu(gate.astype(float), up.astype(float))
    halves = np.ascontiguousarray(out["words"]).view(np.float16).reshape(tokens, width).astype(float)
    greatest = np.abs(halves).max(axis=1)
    assert (greatest >= 2**14).all() and (greatest <= 2**15).all()
    got = halves * out["factors"][:, None]
    limit = HALF_STEP * np.abs(expected) + 1e-5 * np.sqrt(np.mean(expected**2, axis=1, keepdims=True))
    np.testing.assert_array_less(np.abs(got - expected), limit)


# llama.cpp's gate and up projections are not stored: its swiglu is compared in test_matmul.py, behind both.
