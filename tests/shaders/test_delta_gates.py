import numpy as np
import pytest

from tests.reference import activations, delta_rule, fixtures
from tests.shaders.run_kernel import ELEMENTWISE, KernelRun, check
from tests.shaders.same_input_kernels import check_on_llama_cpp, gates, reference_model, weight
from vkprefill.engine import kernels


@pytest.mark.parametrize(("tokens", "heads"), [(1, 16), (2, 1), (63, 3), (64, 32), (65, 6), (127, 33), (200, 48)])
def test_sizes(device, tokens, heads):
    rng = np.random.default_rng(heads)
    alpha, beta = (rng.standard_normal((2, tokens, heads)) * 3).astype(np.float32)
    dt, ssm_a = rng.uniform(-7, 3, heads).astype(np.float32), -np.exp(rng.uniform(-7, 3, heads)).astype(np.float32)
    run = KernelRun(device, tokens, tokens + 3)
    vectors = run.weight("dt", dt), run.weight("ssm_a", ssm_a)
    kernels.delta_gates(
        run.program, run.input("alpha", alpha), run.input("beta", beta), *vectors, run.output("gates", heads, 2)
    )
    got = run.finish()["gates"]
    decay = delta_rule.log_decay(delta_rule.softplus_alpha(alpha.astype(float), dt.astype(float)), ssm_a.astype(float))
    check(f"log_decay T {tokens}, Hv {heads}", got[..., 0], decay, ELEMENTWISE)
    check(f"beta T {tokens}, Hv {heads}", got[..., 1], activations.sigmoid(beta.astype(float)), ELEMENTWISE)


@pytest.mark.parametrize("low", [-90, -20, -8, -5.2, -5, -4, -2, -0.5, 0.5, 5, 19, 80])
def test_softplus_keeps_small_values(device, low):
    """Every stretch of softplus by its own size: between -20 and 0 the decay of a head hangs on it."""
    alpha = np.linspace(low, low + 2 if low > 0 else low * 0.8, 200).astype(np.float32)[:, None]
    got = gates(device, alpha, alpha, np.zeros(1), np.ones(1))
    expected = activations.softplus(alpha.astype(float))
    if low == -90:  # at the smallest floats, which drivers flush to zero (one of them from 2^-122 on); e^-softplus is 1
        np.testing.assert_allclose(got[..., 0], expected, rtol=1e-4, atol=2.0**-120)
    else:
        relative = float(np.max(np.abs(got[..., 0] / expected - 1)))
        assert relative <= 1e-5, f"softplus from {low}: relative error {relative:.2e}"


def test_llama_cpp(device):
    check_on_llama_cpp(device, "beta_sigmoid", "a_softplus", "gate")
    for name in fixtures.FIXTURES:
        model, arrays = reference_model(name), fixtures.load_case(name, "p7").arrays
        for layer in (i for i in range(model.layer_count) if model.recurrent[i]):
            dt, ssm_a = (weight(model, layer, vector) for vector in ("ssm_dt.bias", "ssm_a"))
            got = gates(device, arrays[f"alpha-{layer}"], arrays[f"beta-{layer}"], dt, ssm_a)
            check(f"{name} gate-{layer} from alpha", got[..., 0], arrays[f"gate-{layer}"], ELEMENTWISE)
            check(f"{name} beta_sigmoid-{layer}", got[..., 1], arrays[f"beta_sigmoid-{layer}"], ELEMENTWISE)
