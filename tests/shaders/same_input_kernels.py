"""The engine's kernels on llama.cpp's own inputs: one function for each operation of tests/reference/same_input.py.

Each takes the device, the reference model (for weights and sizes), the layer and the stored inputs, and returns what
llama.cpp stored as the output. Where a kernel does more than the one operation, the rest is made the identity by its
other inputs, or the known factor is divided out in float64.
"""

import functools
from collections.abc import Callable

import numpy as np

from tests.reference import activations, fixtures, same_input
from tests.reference.forward import ReferenceModel
from tests.shaders.run_kernel import KernelRun, check
from vkprefill.engine import kernels
from vkprefill.engine.cache_pool import KVLayer
from vkprefill.engine.halves import SHORT_RUN
from vkprefill.engine.sizes import PAGE
from vkprefill.vulkan.device import Device

Kernel = Callable[..., np.ndarray]


@functools.cache
def reference_model(name: str) -> ReferenceModel:
    return ReferenceModel(fixtures.model_path(name))


def check_on_llama_cpp(device: Device, *outputs: str) -> None:
    """The kernels for these stored arrays, in every layer of every fixture that has them."""
    seen = set()
    for model_name in fixtures.FIXTURES:
        model, case = reference_model(model_name), fixtures.load_case(model_name, "p7")
        for operation, layer, inputs, stored in same_input.operations(model, case):
            if operation.output in outputs:
                got = KERNELS[operation.output](device, model, layer, *inputs)
                label = f"{model_name} {operation.output}-{layer} from {', '.join(operation.inputs)}"
                check(label, got.reshape(stored.shape), stored, operation.limit)
                seen.add(operation.output)
    assert seen == set(outputs)


def weight(model: ReferenceModel, layer: int, name: str) -> np.ndarray:
    return model.weights[f"blk.{layer}.{name}"]


def conv(device: Device, x: np.ndarray, taps: np.ndarray) -> np.ndarray:
    """x [T, C], taps [C, 4] -> silu of the convolution from an empty state."""
    return conv_heads(device, x, taps, key_heads=0, key_dim=4, eps=0.0)


def conv_heads(device: Device, x: np.ndarray, taps: np.ndarray, **heads: float) -> np.ndarray:
    """The same with the heads of queries and keys normalised."""
    run = KernelRun(device, len(x))
    state, y = run.in_out("state", np.zeros((3, x.shape[1])), by_row=False), run.output("y", x.shape[1])
    given = run.input("x", x), run.weight("weight", taps), state, y
    kernels.causal_conv(run.program, *given, state_offset=0, **heads)
    return run.finish()["y"]


def _conv_raw(device, model, layer, x):
    """The kernel writes only silu of it: silu(a) - silu(-a) = a, and one of the two vanishes where a is large."""
    taps, large = weight(model, layer, "ssm_conv1d.weight"), 1e6
    return (conv(device, x, taps * large) - conv(device, x, -taps * large)) / large


def _conv_silu(device, model, layer, x):
    return conv(device, x, now_alone(x.shape[1]))


def now_alone(channels: int) -> np.ndarray:
    """Taps [C, 4] that leave a token as it is."""
    return np.tile([0.0, 0.0, 0.0, 1.0], (channels, 1))


def before_silu(y: np.ndarray) -> np.ndarray:
    """x with silu(x) = y, from the least of silu on, by halving intervals."""
    low, high = np.full(y.shape, -1.2784645), np.full(y.shape, max(1.0, float(y.max())) + 1.0)
    for _ in range(100):
        middle = (low + high) / 2
        above = activations.silu(middle) > y
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return (low + high) / 2


def l2_norm(device: Device, model: ReferenceModel, active: np.ndarray) -> np.ndarray:
    """What silu gave: the kernel has it before its norm."""
    x = before_silu(active.astype(np.float64))
    heads = {"key_heads": model.key_heads, "key_dim": model.state_size, "eps": model.eps}
    return conv_heads(device, x, now_alone(x.shape[1]), **heads).astype(np.float64)


def _l2_query(device, model, layer, active):
    width = model.key_heads * model.state_size
    return l2_norm(device, model, active)[:, :width] * np.sqrt(model.state_size)  # the kernel scales q too


def _l2_key(device, model, layer, active):
    width = model.key_heads * model.state_size
    return l2_norm(device, model, active)[:, width : 2 * width]


def gates(device: Device, alpha, beta, dt, ssm_a) -> np.ndarray:
    run = KernelRun(device, len(alpha))
    vectors = run.weight("dt", dt), run.weight("ssm_a", ssm_a)
    kernels.delta_gates(
        run.program,
        run.input("alpha", alpha),
        run.input("beta", beta),
        *vectors,
        run.output("gates", alpha.shape[1], 2),
    )
    return run.finish()["gates"]


def _beta(device, model, layer, beta):
    return gates(device, np.zeros_like(beta), beta, np.zeros(beta.shape[1]), np.zeros(beta.shape[1]))[..., 1]


def _softplus(device, model, layer, alpha):
    dt = weight(model, layer, "ssm_dt.bias")
    return gates(device, alpha, alpha, dt, np.ones_like(dt))[..., 0]


def _log_decay(device, model, layer, step_size):
    """The kernel starts from alpha: the one with this softplus, in float64."""
    ssm_a = weight(model, layer, "ssm_a")
    return gates(device, np.log(np.expm1(step_size)), step_size, np.zeros_like(ssm_a), ssm_a)[..., 0]


def delta(device: Device, q, k, v, log_decay, beta, state, *, num_rows: int | None = None, offset: int = 0):
    """q (scaled), k [T, Hk, Dk], v [T, Hv, Dv], log_decay, beta [T, Hv], state [Hv, Dv, Dk] -> o, the new state."""
    tokens, (hk, dk), (hv, dv) = len(q), k.shape[1:], v.shape[1:]
    run = KernelRun(device, tokens, num_rows)
    qkv = np.concatenate([a.reshape(tokens, -1) for a in (q, k, v)], axis=1)
    around = np.full(offset, 7.0), np.full(24, 7.0)
    whole = run.in_out("state", np.concatenate([around[0], state.reshape(-1), around[1]]), by_row=False)
    kernels.delta_rule(
        run.program,
        run.input("qkv", qkv),
        run.input("gates", np.stack([log_decay, beta], axis=-1)),
        whole,
        run.output("o", hv * dv),
        kernels.DeltaHeads(hk, hv, dk, dv),
        state_offset=offset,
    )
    out = run.finish()
    assert (out["state"][:offset] == 7).all() and (out["state"][offset + state.size :] == 7).all(), (
        "wrote outside its own state"
    )
    return out["o"].reshape(v.shape), out["state"][offset : offset + state.size].reshape(state.shape)


def _delta(device, model, layer, q, k, v, log_decay, beta):
    return delta(device, q * model.state_size**-0.5, k, v, log_decay, beta, model.new_state()[layer].memory)[0]


def _gated_norm(device, model, layer, core, z):
    run = KernelRun(device, len(core))
    kernels.gated_norm(
        run.program,
        run.input("z", z.reshape(len(z), -1)),
        run.weight("weight", weight(model, layer, "ssm_norm.weight")),
        run.in_out("o", core.reshape(len(core), -1)),
        eps=model.eps,
    )
    return run.finish()["o"]


def _post_norm(device, model, layer, x):
    run = KernelRun(device, len(x))
    w = run.weight("weight", weight(model, layer, "post_attention_norm.weight"))
    kernels.rms_norm(run.program, run.input("x", x), w, run.output("y", x.shape[1]), eps=model.eps)
    return run.finish()["y"]


def rope_table(positions: np.ndarray, rotary_dims: int, base: float) -> np.ndarray:
    angles = np.asarray(positions)[:, None] * base ** (-np.arange(rotary_dims // 2) * 2.0 / rotary_dims)
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


def head_norm_rope(
    device: Device, x, norm_weight, table, *, heads: int, eps: float, num_rows: int | None = None
) -> np.ndarray:
    """x [T, heads * n] -> [T, heads, Dh]."""
    run = KernelRun(device, len(x), num_rows)
    y = run.output("y", heads * len(norm_weight))
    kernels.head_norm_rope(
        run.program,
        run.input("x", x),
        run.weight("weight", norm_weight),
        run.input("rope", table),
        y,
        heads=heads,
        eps=eps,
    )
    return run.finish()["y"].reshape(len(x), heads, -1)


def _query_norm(device, model, layer, joint):
    table = rope_table(np.zeros(len(joint)), model.rotary_dims, model.rope_base)
    return head_norm_rope(
        device, joint, weight(model, layer, "attn_q_norm.weight"), table, heads=model.heads, eps=model.eps
    )


def _rotate(device, model, layer, x):
    """x is normed already: the kernel divides it by its own root mean square, which is multiplied back in float64."""
    table = rope_table(np.arange(len(x)), model.rotary_dims, model.rope_base)
    y = head_norm_rope(device, x.reshape(len(x), -1), np.ones(model.head_size), table, heads=x.shape[1], eps=model.eps)
    return y * np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + model.eps)


def _attention_gate(device, model, layer, gate):
    joint = np.stack(
        [np.full((len(gate), model.heads, model.head_size), np.nan), gate.reshape(len(gate), model.heads, -1)], axis=2
    )
    run = KernelRun(device, len(gate))
    y = run.in_out("y", np.ones_like(gate))
    kernels.attention_gate(run.program, run.input("query_gate", joint.reshape(len(gate), -1)), y, heads=model.heads)
    return run.finish()["y"]


def empty_cache(run: KernelRun, pages: int, kv_heads: int, head_dim: int, kv_type: str) -> KVLayer:
    words = PAGE * kv_heads * head_dim // (2 if kv_type == "f16" else 1)
    return KVLayer(run.scratch("keys", pages, words), run.scratch("values", pages, words))


def _attend(device, model, layer, q, k, v):
    tokens, heads, kv_heads = len(q), q.shape[1], k.shape[1]
    run = KernelRun(device, tokens)
    pages, cache = (
        run.input("pages", np.zeros(1, np.uint32), by_row=False),
        empty_cache(run, 1, kv_heads, model.head_size, "f32"),
    )
    kernels.kv_store(
        run.program,
        run.input("k", k.reshape(tokens, -1)),
        run.input("v", v.reshape(tokens, -1)),
        pages,
        cache,
        kv_heads=kv_heads,
        kv_type="f32",
    )
    kernels.attention(
        run.program,
        run.input("q", q.reshape(tokens, -1), pad=True),
        pages,
        cache,
        run.output("y", heads * model.head_size),
        run.scratch("split_out", 1, SHORT_RUN, heads * model.head_size),
        run.scratch("split_sums", 1, SHORT_RUN, heads, 2),
        heads=heads,
        kv_heads=kv_heads,
        scale=model.head_size**-0.5,
        kv_type="f32",
    )
    return run.finish()["y"]


KERNELS: dict[str, Kernel] = {
    "conv_output_raw": _conv_raw,
    "conv_output_silu": _conv_silu,
    "q_conv_predelta": _l2_query,
    "k_conv_predelta": _l2_key,
    "beta_sigmoid": _beta,
    "a_softplus": _softplus,
    "gate": _log_decay,
    "attn_output": _delta,
    "final_output": _gated_norm,
    "attn_post_norm": _post_norm,
    "Qcur_normed": _query_norm,
    "Qcur": _rotate,
    "Kcur": _rotate,
    "gate_sigmoid": _attention_gate,
    "attn_pregate": _attend,
}
