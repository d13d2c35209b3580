import numpy as np
import pytest

from tests.reference import norm
from tests.shaders.half_rows import check_bits, check_halves, half_output
from tests.shaders.run_kernel import ELEMENTWISE, KernelRun, check
from tests.shaders.same_input_kernels import check_on_llama_cpp
from vkprefill.engine import kernels
from vkprefill.errors import ShapeError

EPS = 1e-6


SIZES = [(1, 16, 128), (2, 1, 16), (63, 3, 32), (64, 2, 36), (65, 1, 256), (127, 2, 64), (200, 3, 4)]


def random_input(tokens: int, heads: int, dim: int) -> tuple[np.ndarray, ...]:
    """float32 o as small as sqrt(EPS), z beyond +-88 too, where e^x overflows, [T, Hv, Dv] each; weight [Dv]."""
    rng = np.random.default_rng(dim)
    o = rng.standard_normal((tokens, heads, dim)) * np.exp(rng.uniform(-9, 1, (tokens, heads, 1)))
    z, weight = rng.standard_normal((tokens, heads, dim)) * 3, rng.uniform(0.2, 2, dim)
    z[0, 0, :2] = -100, 100
    return tuple(a.astype(np.float32) for a in (o, z, weight))


def exact(o: np.ndarray, z: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """float64 [T, Hv * Dv]"""
    expected = norm.gated_rms_norm(o.astype(float), z.astype(float), weight.astype(float), EPS)
    return expected.reshape(len(o), -1)


@pytest.mark.parametrize(("tokens", "heads", "dim"), SIZES)
def test_heads(device, tokens, heads, dim):
    o, z, weight = random_input(tokens, heads, dim)
    run = KernelRun(device, tokens, tokens + 3)
    inputs = run.input("z", z.reshape(tokens, -1)), run.weight("weight", weight)
    kernels.gated_norm(run.program, *inputs, run.in_out("o", o.reshape(tokens, -1)), eps=EPS)
    check(f"gated_norm T {tokens}, {heads} heads of {dim}", run.finish()["o"], exact(o, z, weight), ELEMENTWISE)


@pytest.mark.parametrize(("tokens", "heads", "dim"), [*(s for s in SIZES if s[2] != 36), (5, 32, 128), (3, 2, 512)])
def test_as_halves(device, tokens, heads, dim):
    """o is left as it was."""
    o, z, weight = random_input(tokens, heads, dim)
    run = KernelRun(device, tokens, tokens + 3)
    inputs = run.input("z", z.reshape(tokens, -1)), run.weight("weight", weight), run.input("o", o.reshape(tokens, -1))
    kernels.gated_norm(run.program, *inputs, eps=EPS, half=half_output(run, heads * dim))
    check_halves(f"gated_norm T {tokens}, {heads} heads of {dim}", run.finish(), exact(o, z, weight))


def test_halves_are_those_of_the_floats(device):
    """Both forms sum in the same order, with heads of the released models."""
    o, z, weight = random_input(9, 16, 128)
    results = []
    for as_halves in (False, True):
        run = KernelRun(device, 9)
        inputs = run.input("z", z.reshape(9, -1)), run.weight("weight", weight), run.in_out("o", o.reshape(9, -1))
        kernels.gated_norm(run.program, *inputs, eps=EPS, half=half_output(run, 2048) if as_halves else None)
        results.append(run.finish())
    check_bits(results[1], results[0]["o"])


@pytest.mark.parametrize("dim", [36, 1024])
def test_heads_that_halves_refuse(device, dim):
    run = KernelRun(device, 1)
    o, weight = run.scratch("o", 1, dim), run.weight("weight", np.ones(dim))
    with pytest.raises(ShapeError, match=f"gated_norm: heads of {dim}, wanted a power of two from 4 to 512"):
        kernels.gated_norm(run.program, o, weight, o, eps=EPS, half=half_output(run, dim))


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
