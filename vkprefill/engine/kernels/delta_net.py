"""The gated delta net: causal convolution, norms and gates, delta rule."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from vkprefill.engine.halves import HalfRows
from vkprefill.engine.kernels.common import HALF_LANES, check_shapes, half_words, lanes_for, shuffle_form
from vkprefill.errors import ShapeError
from vkprefill.gguf.config import ModelConfig
from vkprefill.rounding import ceil_div
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.program import Program

CONV_TOKENS = 32  # of an invocation: enough that the three before them, read again, do not count
MAX_KEY_DIM = 4 * HALF_LANES  # of a head: a workgroup has it whole, four values to an invocation


@dataclass(frozen=True)
class DeltaHeads:
    """Sizes of a delta net, by the letters of ARCHITECTURE.md."""

    Hk: int
    Hv: int
    Dk: int
    Dv: int

    @classmethod
    def of(cls, c: ModelConfig) -> DeltaHeads:
        return cls(c.linear_num_key_heads, c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim)

    @property
    def channels(self) -> int:
        """C"""
        return 2 * self.Hk * self.Dk + self.Hv * self.Dv


def causal_conv(
    p: Program,
    x: Buffer,
    weight: Buffer,
    state: Buffer,
    y: Buffer,
    *,
    state_offset: int,
    key_heads: int,
    key_dim: int,
    eps: float,
) -> None:
    """y[T, C] = silu(depthwise convolution of x[T, C] over 4 tokens), its query and key heads normalised, queries also
    by 1 / sqrt(Dk); the state [3, C] at state_offset is read and advanced.
    """
    channels = x.shape[1]
    check_shapes("causal_conv", weight=(weight.shape, (channels, 4)), y=(y.shape[1:], (channels,)))
    if channels % 4 or key_dim % 4 or key_dim > MAX_KEY_DIM:
        raise ShapeError(
            f"causal_conv: {channels} channels with heads of {key_dim}, wanted multiples of 4, and heads of at most "
            f"{MAX_KEY_DIM}"
        )
    p.dispatch(
        "causal_conv",
        [p.step, x, weight, state, y],
        (ceil_div(channels, key_dim), ceil_div(p.num_rows, CONV_TOKENS), 1),
        constants={
            "LOCAL_SIZE": lanes_for(key_dim // 4, HALF_LANES),
            "TOKENS": CONV_TOKENS,
            "C": channels,
            "Hk": key_heads,
            "Dk": key_dim,
            "EPS": eps,
        },
        push={"weight_offset": weight.offset, "state_offset": state_offset},
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
    heads: DeltaHeads,
    *,
    state_offset: int,
) -> None:
    """o[T, Hv, Dv] of the gated delta rule over qkv[T, C]; the state [Hv, Dv, Dk] at state_offset advances."""
    check_shapes(
        "delta_rule",
        qkv=(qkv.shape[1:], (heads.channels,)),
        gates=(gates.shape[1:], (heads.Hv, 2)),
        o=(o.shape[1:], (heads.Hv * heads.Dv,)),
    )
    shader, tiles, constants = delta_tiles(p, "delta_rule", heads)
    p.dispatch(
        shader,
        [p.step, qkv, gates, state, o],
        (tiles, heads.Hv, 1),
        constants=constants,
        push={"state_offset": state_offset},
        work=8.0 * heads.Hv * heads.Dv * heads.Dk * p.num_rows,
    )


def delta_tiles(p: Program, kernel: str, heads: DeltaHeads) -> tuple[str, int, dict[str, int]]:
    """(shader, workgroups for a head, constants) of delta_rule or delta_rows with these heads."""
    key_dim, value_dim = heads.Dk, heads.Dv
    local, lanes, rows = p.device.profile.delta_rule
    lanes = min(lanes, key_dim // 4, p.device.info.subgroup_size)
    while local // lanes * rows > value_dim:
        local, rows = (local, rows // 2) if rows > 1 else (local // 2, rows)
    form, shuffle = shuffle_form(p)
    tile = local // lanes * rows  # of value indices
    if key_dim % (4 * lanes) or value_dim % tile:
        raise ShapeError(f"{kernel}: heads of {key_dim} and {value_dim} do not divide into the profile's tiles")
    constants = {"LOCAL_SIZE": local, "LANES": lanes, "ROWS": rows, **asdict(heads), **shuffle}
    return f"{kernel}{form}", value_dim // tile, constants


def gated_norm(p: Program, z: Buffer, weight: Buffer, o: Buffer, *, eps: float, half: HalfRows | None = None) -> None:
    """o[T, Hv, Dv] = rms_norm(o per head) * weight * silu(z); half: goes there instead, as halves."""
    (value_dim,) = weight.shape
    check_shapes("gated_norm", z=(z.shape[1:], o.shape[1:]))
    width, lanes = o.shape[1], value_dim // 4
    constants = {"Hv": width // value_dim, "Dv": value_dim, "EPS": eps}
    push = {"weight_offset": weight.offset}
    if half is None:
        p.dispatch(
            "gated_norm",
            [p.step, z, weight, o],
            (width // value_dim, p.num_rows, 1),
            constants={"LOCAL_SIZE": lanes_for(lanes, 32)} | constants,
            push=push,
        )
        return
    if value_dim.bit_count() != 1 or not 1 <= lanes <= HALF_LANES:
        raise ShapeError(f"gated_norm: heads of {value_dim}, wanted a power of two from 4 to {4 * HALF_LANES}")
    p.dispatch(
        "gated_norm_half",
        [p.step, z, weight, o, half_words("gated_norm", half, width), half.factors],
        (1, p.num_rows, 1),
        constants={"LOCAL_SIZE": min(1 << (width // 4 - 1).bit_length(), HALF_LANES)}
        | constants
        | {"LEAST_SUBGROUP": p.device.info.min_subgroup_size},
        push=push,
    )
