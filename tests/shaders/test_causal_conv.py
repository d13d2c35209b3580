import numpy as np
import pytest

from tests.reference import conv as reference
from tests.reference import fixtures, norm
from tests.shaders.run_kernel import ELEMENTWISE, KernelRun, check
from tests.shaders.same_input_kernels import check_on_llama_cpp, conv, reference_model, weight
from vkprefill.engine import kernels
from vkprefill.errors import ShapeError

EPS = 1e-6


def convolve(device, x, taps, state, *, offset=0, num_rows=None, key_heads=0, key_dim=4):
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
        key_heads=key_heads,
        key_dim=key_dim,
        eps=EPS,
    )
    out = run.finish()
    assert (out["state"][:offset] == 7).all() and (out["state"][offset + state.size :] == 7).all(), (
        "wrote outside its own state"
    )
    return out["y"], out["state"][offset : offset + state.size].reshape(state.shape)


@pytest.mark.parametrize(
    ("tokens", "channels", "dim"),
    [(1, 6144, 128), (2, 96, 36), (3, 36, 64), (4, 4, 4), (63, 72, 24), (64, 64, 512), (65, 132, 256), (200, 68, 8)],
)
def test_sizes(device, tokens, channels, dim):
    """Without heads; channels that are no whole number of workgroups."""
    rng = np.random.default_rng(channels)
    x, taps, state = (
        rng.standard_normal(shape).astype(np.float32) for shape in ((tokens, channels), (channels, 4), (3, channels))
    )
    y, new_state = convolve(device, x, taps, state, offset=12, num_rows=tokens + 3, key_dim=dim)
    expected = reference.activate(reference.causal_conv(x.astype(float), taps.astype(float), state.astype(float)))
    check(f"causal_conv T {tokens}, C {channels}, {dim} together", y, expected, ELEMENTWISE)
    np.testing.assert_array_equal(new_state, reference.next_state(x, state))


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("tokens", "heads", "dim"),
    [(1, 16, 128), (2, 1, 16), (63, 3, 32), (64, 2, 36), (65, 1, 256), (127, 2, 64), (200, 1, 4)],
)
def test_heads(device, tokens, heads, dim):
    """Queries and keys of all sizes, from below sqrt(EPS) up, and values, three heads of them."""
    rng = np.random.default_rng(dim)
    channels = (2 * heads + 3) * dim
    taps, state = rng.standard_normal((channels, 4)), rng.standard_normal((3, channels))
    x = rng.standard_normal((tokens, channels))
    for part in (x, state):  # silu halves what is small
        part.reshape(len(part), -1, dim)[:, : 2 * heads] *= np.exp(rng.uniform(-10, 3, (1, 2 * heads, 1)))
    x, taps, state = (a.astype(np.float32) for a in (x, taps, state))
    y, new_state = convolve(device, x, taps, state, num_rows=tokens + 3, key_heads=heads, key_dim=dim)
    expected = reference.activate(reference.causal_conv(x.astype(float), taps.astype(float), state.astype(float)))
    expected = expected.reshape(tokens, -1, dim)
    expected[:, : 2 * heads] = norm.l2_norm(expected[:, : 2 * heads], EPS)
    expected[:, :heads] /= np.sqrt(dim)
    parts = {"queries": slice(0, heads), "keys": slice(heads, 2 * heads), "values": slice(2 * heads, None)}
    for name, part in parts.items():
        got = y.reshape(expected.shape)[:, part]
        check(f"causal_conv T {tokens}, {heads} heads of {dim}, {name}", got, expected[:, part], ELEMENTWISE)
    np.testing.assert_array_equal(new_state, reference.next_state(x, state))


@pytest.mark.parametrize(("channels", "dim"), [(70, 4), (72, 6), (72, 516)])
def test_sizes_that_are_refused(device, channels, dim):
    run = KernelRun(device, 1)
    x, taps = run.scratch("x", 1, channels), run.scratch("taps", channels, 4)
    with pytest.raises(ShapeError, match=f"causal_conv: {channels} channels with heads of {dim}, wanted multiples"):
        kernels.causal_conv(run.program, x, taps, x, x, state_offset=0, key_heads=1, key_dim=dim, eps=EPS)


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


def test_llama_cpp_heads(device):
    """Its limit of 1e-5 is what notices a misplaced epsilon, on the queries of tiny-a."""
    check_on_llama_cpp(device, "q_conv_predelta", "k_conv_predelta")
