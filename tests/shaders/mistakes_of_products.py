"""Mistakes in the kernels of matrix products, each with the test that must fail of it.

EVERYWHERE, BY_CHANCE and HIDDEN say who shows them, as in test_planted_mistakes.py.
"""

from tests.shaders import test_matmul, test_matmul_half, test_matvec
from tests.shaders.planting import HIGH_FIRST, LOW_FIRST, Mistake, no_barrier
from vkprefill.vulkan.device import Device


def hybrid(device: Device) -> None:
    test_matmul.test_tiles_of_every_profile(device, "amd", "F16")


def of_halves(device: Device) -> None:
    test_matmul_half.test_sums_bit_for_bit(device)


def matvec(device: Device) -> None:
    test_matvec.test_tiles_of_every_profile(device, "amd", "F16")


def of_a_grid(device: Device) -> None:
    test_matvec.test_tiles_of_every_profile(device, "amd", "IQ2_S")


def few_rows(device: Device) -> None:
    for weight_type in ("Q4_K", "Q4_1"):
        test_matvec.test_tiles_of_every_profile(device, "amd", weight_type)


def counts(device: Device) -> None:
    test_matvec.test_every_number_of_rows(device, "amd", 3)


IN_ORDER = "fma(a[t][k], weights[q * TN + c][k], acc[o])"
BY_NUMBER_OF_ROWS = IN_ORDER.replace("[k]", "[TM > 4u ? 3u - k : k]")
LAST_ROW = "return min(n, ((rows + 31u) & ~31u) - 1u)"
EVERYWHERE = (
    (no_barrier("matmul_hybrid_f16", "matmul_hybrid.comp", 0), hybrid),
    (no_barrier("matmul_hybrid_f16", "matmul_hybrid.comp", 1), hybrid),
    (no_barrier("matvec_f16", "matvec.comp", 0), matvec),
    (
        Mistake("halves swapped", "quant_f16.glsl", "matvec_f16", "unpackHalf2x16(v)", "unpackHalf2x16(v).yx"),
        matvec,
    ),
    (
        Mistake("a row off", "matmul_hybrid.comp", "matmul_hybrid_f16", "+ local] = w", "+ (local ^ 1u)] = w"),
        hybrid,
    ),
    (
        Mistake("a row off", "matmul_hybrid.comp", "matmul_hybrid_half_f16", "+ local] = w", "+ (local ^ 1u)] = w"),
        of_halves,
    ),
    (
        Mistake("high half first", "half_products.glsl", "matmul_hybrid_half_f16", LOW_FIRST, HIGH_FIRST),
        of_halves,
    ),
    (
        Mistake("another's factor", "products.glsl", "matmul_hybrid_half_f16", "factors[t]", "factors[t ^ 1u]"),
        of_halves,
    ),
    (
        Mistake("a row off", "matvec.comp", "matvec_f16", "+ lane_x] = acc[i]", "+ (lane_x ^ 1u)] = acc[i]"),
        matvec,
    ),
    (
        Mistake("another row of x", "matvec.comp", "matvec_q4_1", "min(r, num_tokens", "min(r ^ 1u, num_tokens"),
        few_rows,
    ),
    (
        Mistake("rows not in use", "matvec.comp", "matvec_q4_1", "if (r >= num_tokens)", "if (false)"),
        counts,
    ),
    (Mistake("half a sub-block left out", "weights.glsl", "matvec_f16", "(K - column) / 8u", "0u"), matvec),
    (Mistake("columns after the last read", "weights.glsl", "matmul_hybrid_f16", "(K - column) / 8u", "4u"), hybrid),
    (Mistake("rows for the grid", "grid.glsl", "matvec_iq2_s", "w_head", "w_offset"), of_a_grid),
    (Mistake("the other row of a word", "iq2_values.glsl", "matvec_iq2_s", "row & 1u", "~row & 1u"), of_a_grid),
    (Mistake("rest left out", "matvec.comp", "matvec_q4_1", "if (UNIT_SUBS == BATCH) continue", "continue"), few_rows),
    (
        Mistake("batches of other slices", "matvec.comp", "matvec_q4_k", "b += SLICES * BATCH", "b += BATCH"),
        few_rows,
    ),
    (Mistake("first part of a unit again", "matvec.comp", "matvec_q4_k", "sub_first + i", "i"), few_rows),
    (
        Mistake("several rows in another order", "matvec.comp", "matvec_q4_k", IN_ORDER, BY_NUMBER_OF_ROWS),
        few_rows,
    ),
)
BY_CHANCE = ((no_barrier("matvec_iq2_s", "grid.glsl", 0), of_a_grid),)
HIDDEN = ((Mistake("rows read past the last", "weights.glsl", "matmul_hybrid_f16", LAST_ROW, "return n"), hybrid),)
