import numpy as np
import pytest

from tests.reference import conv as reference
from tests.reference import fixtures
from tests.shaders.run_kernel import ELEMENTWISE, KernelRun, check, using_profile
from tests.shaders.same_input_kernels import check_on_llama_cpp, conv, reference_model, weight
from vkprefill.engine import kernels


def convolve(device, x, taps, state, *, offset=0, num_rows=None):
    """-> (y [T, C], new state [3, C])"""
    run = KernelRun(device, len(x), num_rows)
    whole = np.concatenate([np.full(offset, 7.0), state.reshape(-1), np.full(5, 7.0)])
    kernels.causal_conv(
        run.program,
        run.input("x", x),
        run.weight("weight", taps),
        run.in_out("state", whole, by_row=False),
        run.output("y", x.shape[1]),
        state_offset=offset,
    )
    out = run.finish()
    assert (out["state"][:offset] == 7).all() and (out["state"][offset + state.size :] == 7).all(), (
        "wrote outside its own state"
    )
    return out["y"], out["state"][offset : offset + state.size].reshape(state.shape)


@pytest.mark.parametrize("profile", ["cpu", "amd"])
@pytest.mark.parametrize(
    ("tokens", "channels"), [(1, 6144), (2, 96), (3, 33), (4, 1), (63, 70), (64, 64), (65, 130), (127, 31), (200, 65)]
)
def test_sizes(device, profile, tokens, channels):
    rng = np.random.default_rng(channels)
    x, taps, state = (
        rng.standard_normal(shape).astype(np.float32) for shape in ((tokens, channels), (channels, 4), (3, channels))
    )
    with using_profile(device, profile):
        y, new_state = convolve(device, x, taps, state, offset=12, num_rows=tokens + 3)
    expected = reference.activate(reference.causal_conv(x.astype(float), taps.astype(float), state.astype(float)))
    check(f"causal_conv T {tokens}, C {channels}, {profile}", y, expected, ELEMENTWISE)
    np.testing.assert_array_equal(new_state, reference.next_state(x, state))


def test_calls_continue_each_other(device):
    rng = np.random.default_rng(5)
    x, taps, state = (rng.standard_normal(shape).astype(np.float32) for shape in ((70, 40), (40, 4), (3, 40)))
    whole, last = convolve(device, x, taps, state)
    parts, now = [], state
    for count in (1, 2, 3, 1, 63):
        y, now = convolve(device, x[sum(map(len, parts)) :][:count], taps, now)
        parts.append(y)
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(now, last)


def test_llama_cpp(device):
    check_on_llama_cpp(device, "conv_output_raw", "conv_output_silu")
    for name in fixtures.FIXTURES:
        model, arrays = reference_model(name), fixtures.load_case(name, "p7").arrays
        for layer in (i for i in range(model.layer_count) if model.recurrent[i]):
            got = conv(device, arrays[f"linear_attn_qkv_mixed-{layer}"], weight(model, layer, "ssm_conv1d.weight"))
            check(
                f"{name} conv_output_silu-{layer} from its input", got, arrays[f"conv_output_silu-{layer}"], ELEMENTWISE
            )
