import numpy as np
import pytest

from tests.reference import delta_rule as reference
from tests.reference import fixtures
from tests.shaders.run_kernel import PROFILES, REDUCTION, check, using_profile
from tests.shaders.same_input_kernels import check_on_llama_cpp, delta, reference_model


def random_inputs(seed, tokens, hk, hv, dim, decays=(1e-4, 20.0)):
    """As the layers give them: unit queries (scaled by the kernel before) and keys; log_decay down to -20."""
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal((2, tokens, hk, dim))
    q, k = (a / np.linalg.norm(a, axis=-1, keepdims=True) for a in (q, k))
    v, state = rng.standard_normal((tokens, hv, dim)), rng.standard_normal((hv, dim, dim))
    log_decay = -np.exp(rng.uniform(*np.log(decays), (tokens, hv)))
    inputs = q, k, v, log_decay, rng.uniform(0, 1, (tokens, hv)), state
    return [a.astype(np.float32).astype(float) for a in inputs]


def compare(device, case, inputs, num_rows=None, offset=0):
    q, k, v, log_decay, beta, state = inputs
    scaled = (q * reference.query_scale(q.shape[-1])).astype(np.float32)
    o, new_state = delta(device, scaled, k, v, log_decay, beta, state, num_rows=num_rows, offset=offset)
    expected, expected_state = reference.recurrent(
        scaled.astype(float) / reference.query_scale(q.shape[-1]), k, v, log_decay, beta, state
    )
    check(f"delta_rule {case}, outputs", o, expected, REDUCTION)
    check(f"delta_rule {case}, state", new_state, expected_state, REDUCTION)


@pytest.mark.parametrize(
    ("tokens", "hk", "hv", "dim"),
    [
        (1, 2, 2, 16),
        (2, 1, 3, 32),
        (63, 2, 4, 64),
        (64, 2, 6, 16),
        (65, 3, 3, 32),
        (127, 1, 2, 128),
        (200, 2, 4, 32),
        (5, 1, 1, 256),
    ],
)
def test_sizes(device, tokens, hk, hv, dim):
    compare(
        device,
        f"T {tokens}, Hk {hk}, Hv {hv}, Dk {dim}",
        random_inputs(dim, tokens, hk, hv, dim),
        tokens + 3,
        offset=20,
    )


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("dim", [16, 32, 128])
def test_tiles_of_every_profile(device, profile, dim):
    with using_profile(device, profile):
        compare(device, f"{profile}, Dk {dim}", random_inputs(dim, 33, 2, 4, dim), 40)


def test_drift_over_512_tokens(device):
    """Hardly any decay: what float32 loses in each step stays in the state."""
    compare(device, "512 tokens", random_inputs(1, 512, 1, 2, 64, decays=(1e-4, 1e-2)))


@pytest.mark.parametrize("log_decay", [0.0, -1e-4, -20.0, -200.0])
def test_constant_decay(device, log_decay):
    q, k, v, _, beta, state = random_inputs(3, 20, 1, 2, 32)
    compare(device, f"log_decay {log_decay}", (q, k, v, np.full_like(beta, log_decay), beta, state))


def test_weak_decay_beside_strong(device):
    q, k, v, log_decay, beta, state = random_inputs(5, 100, 1, 2, 32, decays=(1e-4, 1e-1))
    log_decay[::3] = -150.0
    compare(device, "log_decay -150 every third token", (q, k, v, log_decay, beta, state))


def test_calls_continue_each_other(device):
    q, k, v, log_decay, beta, state = random_inputs(4, 40, 2, 4, 32)
    whole, last = delta(device, q, k, v, log_decay, beta, state)
    parts, start, now = [], 0, state
    for count in (1, 2, 37):
        o, now = delta(device, *(a[start : start + count] for a in (q, k, v, log_decay, beta)), now)
        parts, start = [*parts, o], start + count
    check("parts, outputs", np.concatenate(parts), whole, 0)
    check("parts, state", now, last, 0)


@pytest.mark.smoke
def test_llama_cpp(device):
    check_on_llama_cpp(device, "attn_output")


@pytest.mark.parametrize("name", fixtures.FIXTURES)
def test_llama_cpp_state_after_65_tokens(device, name):
    """Layer 0 stores its inputs, outputs and new state."""
    model, arrays = reference_model(name), fixtures.load_case(name, "p65").arrays
    q, k, v, log_decay, beta = (
        arrays[f"{a}-0"] for a in ("q_conv_predelta", "k_conv_predelta", "v_conv_predelta", "gate", "beta_sigmoid")
    )
    o, state = delta(
        device,
        q * model.state_size**-0.5,
        k,
        v,
        log_decay.reshape(beta.shape),
        beta,
        np.zeros_like(arrays["new_state-0"]),
    )
    check(f"{name} p65 attn_output-0", o, arrays["attn_output-0"].reshape(o.shape), REDUCTION)
    check(f"{name} p65 new_state-0", state, arrays["new_state-0"], REDUCTION)
