"""Norms and activations, a row at a time."""

from __future__ import annotations

from vkprefill.engine.halves import HalfRows
from vkprefill.engine.kernels.common import check_shapes, half_lanes, half_words
from vkprefill.rounding import ceil_div
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.program import Program


def rms_norm(
    p: Program,
    x: Buffer,
    weight: Buffer,
    y: Buffer,
    *,
    eps: float,
    last_row: bool = False,
    half: HalfRows | None = None,
) -> None:
    """y[T, D] = x / rms(x) * weight; last_row: y[0] from the last token in use only; half: y as halves too."""
    dim = x.shape[1]
    check_shapes("rms_norm", weight=(weight.shape, (dim,)), y=(y.shape[1:], (dim,)))
    constants = {"LOCAL_SIZE": p.device.profile.local_size, "D": dim, "EPS": eps}
    grid, push = (1 if last_row else p.num_rows, 1, 1), {"weight_offset": weight.offset}
    if half is None:
        p.dispatch(
            "rms_norm", [p.step, x, weight, y], grid, constants=constants | {"LAST_ROW": int(last_row)}, push=push
        )
        return
    constants["LOCAL_SIZE"] = half_lanes(p, dim)
    buffers = [p.step, x, weight, y, half_words("rms_norm", half, dim), half.factors]
    p.dispatch("rms_norm_half", buffers, grid, constants=constants, push=push)


def swiglu(p: Program, up: Buffer, gate: Buffer, half: HalfRows | None = None, *, rows_of_token: int = 1) -> None:
    """gate[T, F] = silu(gate) * up; half: goes there instead, as halves. rows_of_token: gate[T rows_of_token, F]."""
    check_shapes("swiglu", up=(up.shape[1:], gate.shape[1:]))
    width, local = gate.shape[1], p.device.profile.local_size
    if half is None:
        grid = ceil_div(width // 4, local), p.num_rows, rows_of_token
        p.dispatch("swiglu", [p.step, up, gate], grid, constants={"LOCAL_SIZE": local, "F": width})
        return
    p.dispatch(
        "swiglu_half",
        [p.step, up, gate, half_words("swiglu", half, width), half.factors],
        (1, p.num_rows, rows_of_token),
        constants={"LOCAL_SIZE": half_lanes(p, width), "F": width},
    )
