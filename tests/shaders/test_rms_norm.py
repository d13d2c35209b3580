import numpy as np
import pytest

from tests.reference import norm
from tests.shaders.half_rows import check_bits, half_output
from tests.shaders.run_kernel import ELEMENTWISE, PROFILES, KernelRun, check, using_profile
from vkprefill.engine import kernels

EPS = 1e-6


@pytest.mark.parametrize("profile", ["cpu", "amd"])  # every class has one of these two workgroup sizes
@pytest.mark.parametrize(("tokens", "dim"), [(1, 1024), (2, 4), (63, 260), (64, 64), (65, 36), (127, 1028), (200, 132)])
def test_rows(device, profile, tokens, dim):
    rng = np.random.default_rng(dim)
    x = rng.standard_normal((tokens, dim)) * np.exp(rng.uniform(-9, 5, (tokens, 1)))  # from below sqrt(eps) up
    weight = rng.uniform(0.2, 2.0, dim)
    with using_profile(device, profile):
        run = KernelRun(device, tokens, tokens + 3)
        kernels.rms_norm(run.program, run.input("x", x), run.weight("weight", weight), run.output("y", dim), eps=EPS)
        y = run.finish()["y"]
    x, weight = x.astype(np.float32).astype(float), weight.astype(np.float32).astype(float)
    check(f"rms_norm T {tokens}, D {dim}, {profile}", y, norm.rms_norm(x, weight, EPS), ELEMENTWISE)


@pytest.mark.parametrize("profile", ["cpu", "amd"])
@pytest.mark.parametrize(("tokens", "dim"), [(2, 4), (63, 260), (5, 1028), (3, 2560)])
def test_halves_beside_it(device, profile, tokens, dim):
    """Those of the floats that the same kernel wrote, bit for bit."""
    rng = np.random.default_rng(dim)
    x = rng.standard_normal((tokens, dim)) * np.exp(rng.uniform(-9, 5, (tokens, 1)))
    weight = rng.uniform(0.2, 2.0, dim)
    with using_profile(device, profile):
        run = KernelRun(device, tokens, tokens + 3)
        y, half = run.output("y", dim), half_output(run, dim)
        kernels.rms_norm(run.program, run.input("x", x), run.weight("weight", weight), y, eps=EPS, half=half)
        out = run.finish()
    x, weight = x.astype(np.float32).astype(float), weight.astype(np.float32).astype(float)
    check(f"rms_norm T {tokens}, D {dim}, {profile}", out["y"], norm.rms_norm(x, weight, EPS), ELEMENTWISE)
    check_bits(out, out["y"])


def test_profiles_have_the_workgroup_sizes_tested():
    assert {profile.local_size for profile in PROFILES.values()} == {
        PROFILES["cpu"].local_size,
        PROFILES["amd"].local_size,
    }


@pytest.mark.parametrize("tokens", [1, 64, 65])
def test_last_row_only(device, tokens):
    rng = np.random.default_rng(tokens)
    x, weight = rng.standard_normal((tokens, 96)).astype(np.float32), np.ones(96, np.float32)
    run = KernelRun(device, tokens, 96)
    y = run.output("y", 1, 96, by_row=False)
    kernels.rms_norm(run.program, run.input("x", x), run.weight("weight", weight), y, eps=EPS, last_row=True)
    check(f"last of {tokens} rows", run.finish()["y"], norm.rms_norm(x[-1:].astype(float), 1.0, EPS), ELEMENTWISE)


def test_zero_row_gives_zeros(device):
    run = KernelRun(device, 2)
    kernels.rms_norm(
        run.program, run.input("x", np.zeros((2, 64))), run.weight("weight", np.ones(64)), run.output("y", 64), eps=EPS
    )
    assert not run.finish()["y"].any()
