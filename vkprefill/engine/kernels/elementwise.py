"""Norms and activations, a row at a time."""

from __future__ import annotations

from vkprefill.engine.kernels.common import ceil_div, check_shapes
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.program import Program


def rms_norm(p: Program, x: Buffer, weight: Buffer, y: Buffer, *, eps: float, last_row: bool = False) -> None:
    """y[T, D] = x / rms(x) * weight; last_row: y[0] from the last token in use only."""
    dim = x.shape[1]
    check_shapes("rms_norm", weight=(weight.shape, (dim,)), y=(y.shape[1:], (dim,)))
    p.dispatch(
        "rms_norm",
        [p.step, x, weight, y],
        (1 if last_row else p.num_rows, 1, 1),
        constants={"LOCAL_SIZE": p.device.profile.local_size, "D": dim, "EPS": eps, "LAST_ROW": int(last_row)},
        push={"weight_offset": weight.offset},
    )


def swiglu(p: Program, up: Buffer, gate: Buffer) -> None:
    """gate[T, F] = silu(gate) * up."""
    check_shapes("swiglu", up=(up.shape[1:], gate.shape[1:]))
    local = p.device.profile.local_size
    p.dispatch(
        "swiglu",
        [p.step, up, gate],
        (ceil_div(gate.shape[1] // 4, local), p.num_rows, 1),
        constants={"LOCAL_SIZE": local, "F": gate.shape[1]},
    )
