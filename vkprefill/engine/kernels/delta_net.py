"""The gated delta net: causal convolution, norms and gates, delta rule."""

from __future__ import annotations

from vkprefill.engine.kernels.common import ceil_div, check_shapes, lanes_for, shuffle_form
from vkprefill.engine.memory import DELTA_CHUNK, delta_chunks_shape
from vkprefill.errors import ShapeError
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.probe import MIN_SHARED_BYTES
from vkprefill.vulkan.program import Program

CONV_TOKENS = 32  # of an invocation: enough that the three before them, read again, do not count


def causal_conv(p: Program, x: Buffer, weight: Buffer, state: Buffer, y: Buffer, *, state_offset: int) -> None:
    """y[T, C] = silu(depthwise convolution of x[T, C] over 4 tokens); the state [3, C] at state_offset is read and
    advanced.
    """
    channels = x.shape[1]
    check_shapes("causal_conv", weight=(weight.shape, (channels, 4)), y=(y.shape[1:], (channels,)))
    local = p.device.profile.local_size
    p.dispatch(
        "causal_conv",
        [p.step, x, weight, state, y],
        (ceil_div(channels, local), ceil_div(p.num_rows, CONV_TOKENS), 1),
        constants={"LOCAL_SIZE": local, "TOKENS": CONV_TOKENS, "C": channels},
        push={"weight_offset": weight.offset, "state_offset": state_offset},
    )


def l2_norm(p: Program, qkv: Buffer, *, key_heads: int, key_dim: int, eps: float) -> None:
    """Normalise the query and key heads of each row of qkv[T, C] in place; queries also by 1 / sqrt(Dk)."""
    p.dispatch(
        "l2_norm",
        [p.step, qkv],
        (2 * key_heads, p.num_rows, 1),
        constants={
            "LOCAL_SIZE": lanes_for(key_dim // 4, 32),
            "C": qkv.shape[1],
            "Hk": key_heads,
            "Dk": key_dim,
            "EPS": eps,
        },
    )


def delta_gates(p: Program, alpha: Buffer, beta_logits: Buffer, dt: Buffer, ssm_a: Buffer, gates: Buffer) -> None:
    """gates[T, Hv] = (log_decay, beta)."""
    heads = alpha.shape[1]
    check_shapes(
        "delta_gates",
        beta_logits=(beta_logits.shape[1:], (heads,)),
        dt=(dt.shape, (heads,)),
        ssm_a=(ssm_a.shape, (heads,)),
        gates=(gates.shape[1:], (heads, 2)),
    )
    local = min(heads, 32)
    p.dispatch(
        "delta_gates",
        [p.step, alpha, beta_logits, dt, ssm_a, gates],
        (ceil_div(heads, local), p.num_rows, 1),
        constants={"LOCAL_SIZE": local, "Hv": heads},
        push={"dt_offset": dt.offset, "a_offset": ssm_a.offset},
    )


def delta_rule(
    p: Program,
    qkv: Buffer,
    gates: Buffer,
    state: Buffer,
    o: Buffer,
    chunks: Buffer | None = None,
    *,
    state_offset: int,
    key_heads: int,
    value_heads: int,
    key_dim: int,
    value_dim: int,
) -> None:
    """o[T, Hv, Dv] of the gated delta rule over qkv[T, C]; the state [Hv, Dv, Dk] at state_offset advances.

    Given chunks (scratch, see memory.delta_chunks_shape), a program of several tokens takes DELTA_CHUNK together.
    """
    check_shapes(
        "delta_rule",
        qkv=(qkv.shape[1:], (2 * key_heads * key_dim + value_heads * value_dim,)),
        gates=(gates.shape[1:], (value_heads, 2)),
        o=(o.shape[1:], (value_heads * value_dim,)),
    )
    heads = {"Hk": key_heads, "Hv": value_heads, "Dk": key_dim, "Dv": value_dim}
    if chunks is not None and p.num_rows > 1:
        _delta_chunks(p, qkv, gates, state, o, chunks, state_offset, heads)
        return
    local, lanes, rows = p.device.profile.delta_rule
    lanes = min(lanes, key_dim // 4, p.device.info.subgroup_size)
    while local // lanes * rows > value_dim:
        local, rows = (local, rows // 2) if rows > 1 else (local // 2, rows)
    form, shuffle = shuffle_form(p)
    if key_dim % (4 * lanes) or value_dim % (local // lanes * rows):
        raise ShapeError(f"delta_rule: heads of {key_dim} and {value_dim} do not divide into the profile's tiles")
    p.dispatch(
        f"delta_rule{form}",
        [p.step, qkv, gates, state, o],
        (value_dim // (local // lanes * rows), value_heads, 1),
        constants={"LOCAL_SIZE": local, **(shuffle or {"LANES": lanes, "ROWS": rows}), **heads},
        push={"state_offset": state_offset},
        work=8.0 * value_heads * value_dim * key_dim * p.num_rows,
    )


def _delta_chunks(
    p: Program,
    qkv: Buffer,
    gates: Buffer,
    state: Buffer,
    o: Buffer,
    chunks: Buffer,
    state_offset: int,
    heads: dict[str, int],
) -> None:
    """What does not depend on the state for all chunks at once, then the state through the chunks in order."""
    value_heads, key_dim, value_dim = heads["Hv"], heads["Dk"], heads["Dv"]
    num_chunks, *of_chunk = delta_chunks_shape(p.num_rows, value_heads)
    check_shapes("delta_rule", chunks=(chunks.shape[1:], tuple(of_chunk)))
    local, tt, tn = p.device.profile.delta_chunk
    p.dispatch(
        "delta_chunk",
        [p.step, qkv, gates, chunks],
        (num_chunks, value_heads, 1),
        constants=_delta_tile(p, local, tt, tn) | heads,
        work=2.0 * DELTA_CHUNK * key_dim * value_heads * p.num_rows,
    )
    # The columns of a workgroup keep their state and a chunk of updates in shared memory.
    most = min(value_dim, MIN_SHARED_BYTES // (4 * (key_dim + DELTA_CHUNK)))
    while local * tn > most:
        local, tn = (local, tn // 2) if tn > 1 else (local // 2, tn)
    if key_dim % tt or value_dim % (local * tn):
        raise ShapeError(f"delta_rule: heads of {key_dim} and {value_dim} do not divide into the profile's tiles")
    p.dispatch(
        "delta_walk",
        [p.step, qkv, gates, chunks, state, o],
        (value_dim // (local * tn), value_heads, 1),
        constants=_delta_tile(p, local, tt, tn) | heads,
        push={"state_offset": state_offset},
        work=2.0 * (3 * key_dim + DELTA_CHUNK) * value_dim * value_heads * p.num_rows,
    )


def _delta_tile(p: Program, local: int, tt: int, tn: int) -> dict[str, int]:
    share = min(p.device.info.subgroup_size, tt, local) if p.device.profile.shuffle else 1
    return {"LOCAL_SIZE": local, "TT": tt, "TN": tn, "SHARE": share, "CHUNK": DELTA_CHUNK}


def gated_norm(p: Program, z: Buffer, weight: Buffer, o: Buffer, *, eps: float) -> None:
    """o[T, Hv, Dv] = rms_norm(o per head) * weight * silu(z)."""
    (value_dim,) = weight.shape
    check_shapes("gated_norm", z=(z.shape[1:], o.shape[1:]))
    p.dispatch(
        "gated_norm",
        [p.step, z, weight, o],
        (o.shape[1] // value_dim, p.num_rows, 1),
        constants={
            "LOCAL_SIZE": lanes_for(value_dim // 4, 32),
            "Hv": o.shape[1] // value_dim,
            "Dv": value_dim,
            "EPS": eps,
        },
        push={"weight_offset": weight.offset},
    )
