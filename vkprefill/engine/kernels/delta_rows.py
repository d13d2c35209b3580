"""The delta net of a few rows that may yet be taken back; see engine/kept_rows.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vkprefill.engine.cache_pool import StateOffsets
from vkprefill.engine.kept_rows import KEPT
from vkprefill.engine.kernels.common import check_shapes, lanes_for
from vkprefill.engine.kernels.delta_net import MAX_KEY_DIM, DeltaHeads, delta_tiles
from vkprefill.errors import ShapeError
from vkprefill.rounding import ceil_div
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.program import Program


@dataclass(frozen=True)
class DeltaVectors:
    """A layer's weights beside its matrices: taps [C, 4], dt [Hv], ssm_a [Hv]."""

    taps: Buffer
    dt: Buffer
    ssm_a: Buffer


def delta_inputs(
    p: Program,
    projections: tuple[Buffer, Buffer, Buffer],
    vectors: DeltaVectors,
    state: Buffer,
    kept: Buffer,
    at: StateOffsets,
    heads: DeltaHeads,
    *,
    eps: float,
) -> None:
    """From qkv_raw[R, C], alpha[R, Hv] and beta logits[R, Hv] of a layer to its rows in `kept`; the convolution state
    takes in the rows that wait.
    """
    channels = heads.channels
    _check_rows("delta_inputs", p)
    if heads.Dk % 4 or heads.Dk > MAX_KEY_DIM:
        raise ShapeError(f"delta_inputs: key heads of {heads.Dk}, wanted a multiple of 4 up to {MAX_KEY_DIM}")
    raw, alpha, beta_logits = projections
    check_shapes(
        "delta_inputs",
        raw=(raw.shape[1:], (channels,)),
        alpha=(alpha.shape[1:], (heads.Hv,)),
        beta_logits=(beta_logits.shape[1:], (heads.Hv,)),
        taps=(vectors.taps.shape, (channels, 4)),
        dt=(vectors.dt.shape, (heads.Hv,)),
        ssm_a=(vectors.ssm_a.shape, (heads.Hv,)),
    )
    p.dispatch(
        "delta_inputs",
        [p.step, raw, alpha, beta_logits, vectors.taps, vectors.dt, vectors.ssm_a, state, kept],
        (ceil_div(channels, heads.Dk) + 1, 1, 1),
        constants={
            "LOCAL_SIZE": lanes_for(heads.Dk // 4, MAX_KEY_DIM // 4),
            "Hk": heads.Hk,
            "Hv": heads.Hv,
            "Dk": heads.Dk,
            "C": channels,
            "EPS": eps,
        },
        push={
            "taps_offset": vectors.taps.offset,
            "state_offset": at.conv,
            "kept_offset": at.kept,
            "dt_offset": vectors.dt.offset,
            "a_offset": vectors.ssm_a.offset,
        },
    )


def delta_rows(p: Program, kept: Buffer, state: Buffer, o: Buffer, at: StateOffsets, heads: DeltaHeads) -> None:
    """o[R, Hv, Dv] of the gated delta rule over a layer's rows in `kept`; its state takes in the rows that wait."""
    _check_rows("delta_rows", p)
    _delta_rows(p, kept, state, o, at, heads, 1, StateOffsets(0, 0, 0))


def commit(
    p: Program, kept: Buffer, state: Buffer, o: Buffer, places: Sequence[StateOffsets], heads: DeltaHeads
) -> None:
    """The states of all delta-net layers take in the rows that wait. places: of the layers, equally far apart; o is
    bound and not written.
    """
    first, channels = places[0], heads.channels
    stride = first.to(places[1]) if len(places) > 1 else StateOffsets(0, 0, 0)
    local = p.device.profile.local_size
    p.dispatch(
        "commit_conv",
        [p.step, kept, state],
        (ceil_div(channels // 4, local), 1, len(places)),
        constants={"LOCAL_SIZE": local, "Hv": heads.Hv, "C": channels},
        push={
            "state_offset": first.conv,
            "state_stride": stride.conv,
            "kept_offset": first.kept,
            "kept_stride": stride.kept,
        },
    )
    _delta_rows(p, kept, state, o, first, heads, len(places), stride)


def _delta_rows(
    p: Program,
    kept: Buffer,
    state: Buffer,
    o: Buffer,
    at: StateOffsets,
    heads: DeltaHeads,
    layers: int,
    stride: StateOffsets,
) -> None:
    check_shapes("delta_rows", o=(o.shape[1:], (heads.Hv * heads.Dv,)))
    shader, tiles, constants = delta_tiles(p, "delta_rows", heads)
    p.dispatch(
        shader,
        [p.step, kept, state, o],
        (tiles, heads.Hv, layers),
        constants=constants,
        push={
            "state_offset": at.recurrent,
            "state_stride": stride.recurrent,
            "kept_offset": at.kept,
            "kept_stride": stride.kept,
        },
        work=8.0 * heads.Hv * heads.Dv * heads.Dk * p.num_rows * layers,
    )


def _check_rows(kernel: str, p: Program) -> None:
    if p.num_rows > KEPT:
        raise ShapeError(f"{kernel}: a program of {p.num_rows} rows, wanted at most {KEPT}")
