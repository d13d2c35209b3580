import numpy as np
import pytest

from tests.reference import norm
from tests.shaders.run_kernel import ELEMENTWISE, KernelRun, check
from tests.shaders.same_input_kernels import check_on_llama_cpp
from vkprefill.engine import kernels

EPS = 1e-6


@pytest.mark.parametrize(
    ("tokens", "heads", "dim"),
    [(1, 16, 128), (2, 1, 16), (63, 3, 32), (64, 2, 36), (65, 1, 256), (127, 2, 64), (200, 3, 4)],
)
def test_heads(device, tokens, heads, dim):
    rng = np.random.default_rng(dim)
    o = (rng.standard_normal((tokens, heads, dim)) * np.exp(rng.uniform(-9, 1, (tokens, heads, 1)))).astype(
        np.float32
    )  # as small as sqrt(eps)
    z, weight = (
        (rng.standard_normal((tokens, heads, dim)) * 3).astype(np.float32),
        rng.uniform(0.2, 2, dim).astype(np.float32),
    )
    z[0, 0, :2] = -100, 100  # beyond +-88, where e^x overflows
    run = KernelRun(device, tokens, tokens + 3)
    kernels.gated_norm(
        run.program,
        run.input("z", z.reshape(tokens, -1)),
        run.weight("weight", weight),
        run.in_out("o", o.reshape(tokens, -1)),
        eps=EPS,
    )
    expected = norm.gated_rms_norm(o.astype(float), z.astype(float), weight.astype(float), EPS)
    check(
        f"gated_norm T {tokens}, {heads} heads of {dim}", run.finish()["o"], expected.reshape(tokens, -1), ELEMENTWISE
    )


def test_llama_cpp(device):
    check_on_llama_cpp(device, "final_output")


def test_zero_output_stays_zero(device):
    run = KernelRun(device, 2)
    kernels.gated_norm(
        run.program,
        run.input("z", np.ones((2, 64))),
        run.weight("weight", np.ones(32)),
        run.in_out("o", np.zeros((2, 64))),
        eps=EPS,
    )
    assert not run.finish()["o"].any()
