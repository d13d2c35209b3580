import numpy as np
import pytest

from tests.reference import activations
from tests.shaders.half_rows import check_halves, half_output
from tests.shaders.run_kernel import ELEMENTWISE, KernelRun, check, using_profile
from vkprefill.engine import kernels


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


@pytest.mark.parametrize("profile", ["cpu", "amd"])
@pytest.mark.parametrize(("tokens", "width"), [(2, 4), (63, 260), (3, 3584), (2, 9216), (2, 12288)])
def test_as_halves(device, profile, tokens, width):
    """The gate is left as it was."""
    rng = np.random.default_rng(width)
    gate, up = (rng.standard_normal((2, tokens, width)) * np.exp(rng.uniform(-4, 4, (2, tokens, 1)))).astype(np.float32)
    gate[0, :2] = -100, 100
    with using_profile(device, profile):
        run = KernelRun(device, tokens, tokens + 2)
        half = half_output(run, width)
        kernels.swiglu(run.program, run.input("up", up), run.input("gate", gate), half)
        out = run.finish()
    case = f"swiglu T {tokens}, F {width}, {profile}"
    check_halves(case, out, activations.swiglu(gate.astype(float), up.astype(float)))


# llama.cpp's gate and up projections are not stored: its swiglu is compared in test_matmul.py, behind both.
