"""Mistakes in the kernels of norms and of rows made halves, each with the test that must fail of it.

EVERYWHERE, BY_CHANCE and HIDDEN say who shows them, as in test_planted_mistakes.py.
"""

from tests.shaders import test_attention_rows, test_gated_norm, test_half_row, test_rms_norm
from tests.shaders.planting import Mistake, no_barrier
from vkprefill.vulkan.device import Device


def rms_norm(device: Device) -> None:
    test_rms_norm.test_rows(device, test_attention_rows.WIDE, 63, 1028)


def half_row(device: Device) -> None:
    test_half_row.test_bit_for_bit(device, "amd", 3, 1028)


def gated_norm(device: Device) -> None:
    test_gated_norm.test_as_halves(device, 63, 3, 32)


def wide_heads(device: Device) -> None:
    """Several subgroups for each."""
    test_gated_norm.test_as_halves(device, 3, 2, 512)


EVERYWHERE = (
    (no_barrier("rms_norm", "reduce.glsl", 0), rms_norm),
    (
        Mistake("a power of two off", "half_row.glsl", "attention_gate_half", "254u - power", "255u - power"),
        half_row,
    ),
    (
        Mistake("halves overflow", "half_row.glsl", "attention_gate_half", "268u - exponent", "270u - exponent"),
        half_row,
    ),
    (
        Mistake("other columns", "gated_norm.comp", "gated_norm_half", "silu(z[i])", "silu(z[i ^ 1u])"),
        gated_norm,
    ),
    (Mistake("heads added up", "lanes.glsl", "gated_norm_half", "m < LANES", "m < 2u * LANES"), gated_norm),
    (no_barrier("gated_norm_half", "lanes.glsl", 0), wide_heads),
    (no_barrier("gated_norm_half", "lanes.glsl", 1), wide_heads),
)
