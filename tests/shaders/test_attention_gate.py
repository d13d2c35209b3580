import numpy as np
import pytest

from tests.reference import activations, fixtures
from tests.shaders.half_rows import check_halves, half_output
from tests.shaders.run_kernel import ELEMENTWISE, KernelRun, check, using_profile
from tests.shaders.same_input_kernels import check_on_llama_cpp, reference_model
from vkprefill.engine import kernels

SIZES = [(1, 2, 256), (2, 1, 36), (63, 3, 20), (65, 4, 32), (127, 5, 80)]


def gated(device, query_gate: np.ndarray, y: np.ndarray, heads: int, num_rows: int | None = None) -> np.ndarray:
    run = KernelRun(device, len(y), num_rows)
    kernels.attention_gate(run.program, run.input("query_gate", query_gate), run.in_out("y", y), heads=heads)
    return run.finish()["y"]


def random_input(tokens: int, heads: int, dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """float32 joint [T, H * 2 * Dh], its queries NaN, and y [T, H * Dh]; what becomes of it in float64."""
    rng = np.random.default_rng(dim)
    joint = rng.standard_normal((tokens, heads, 2, dim)).astype(np.float32)
    joint[:, :, 0] = np.nan
    joint[:, :, 1] *= np.exp(rng.uniform(-4, 5, (tokens, heads, 1)))  # beyond +-88, where e^x overflows
    y = rng.standard_normal((tokens, heads, dim)).astype(np.float32)
    expected = y.astype(float) * activations.sigmoid(joint[:, :, 1].astype(float))
    return joint.reshape(tokens, -1), y.reshape(tokens, -1), expected.reshape(tokens, -1)


@pytest.mark.parametrize("profile", ["cpu", "amd"])
@pytest.mark.parametrize(("tokens", "heads", "dim"), SIZES)
def test_rows(device, profile, tokens, heads, dim):
    joint, y, expected = random_input(tokens, heads, dim)
    with using_profile(device, profile):
        got = gated(device, joint, y, heads, tokens + 4)
    check(f"attention_gate T {tokens}, {heads} heads of {dim}, {profile}", got, expected, ELEMENTWISE)


@pytest.mark.parametrize("profile", ["cpu", "amd"])
@pytest.mark.parametrize(("tokens", "heads", "dim"), [*SIZES, (3, 16, 256)])
def test_as_halves(device, profile, tokens, heads, dim):
    """y is left as it was."""
    joint, y, expected = random_input(tokens, heads, dim)
    with using_profile(device, profile):
        run = KernelRun(device, tokens, tokens + 4)
        given, half = (run.input("query_gate", joint), run.input("y", y)), half_output(run, heads * dim)
        kernels.attention_gate(run.program, *given, heads=heads, half=half)
        check_halves(f"attention_gate T {tokens}, {heads} heads of {dim}, {profile}", run.finish(), expected)


def test_llama_cpp(device):
    check_on_llama_cpp(device, "gate_sigmoid")
    for name in fixtures.FIXTURES:
        model, arrays = reference_model(name), fixtures.load_case(name, "p7").arrays
        for layer in (i for i in range(model.layer_count) if not model.recurrent[i]):
            got = gated(device, arrays[f"Qcur_full-{layer}"], arrays[f"attn_pregate-{layer}"], model.heads)
            check(f"{name} attn_gated-{layer}", got, arrays[f"attn_gated-{layer}"], ELEMENTWISE)
