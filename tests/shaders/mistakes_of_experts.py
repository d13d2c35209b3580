"""Mistakes in the kernels of experts, each with the test that must fail of it.

EVERYWHERE, BY_CHANCE and HIDDEN say who shows them, as in test_planted_mistakes.py.
"""

from tests.shaders import test_experts
from tests.shaders.planting import Mistake, no_barrier
from vkprefill.vulkan.device import Device


def equal_logits(device: Device) -> None:
    test_experts.test_equal_logits_far_from_zero(device)


def places(device: Device) -> None:
    """With experts of several waves."""
    test_experts.test_places_and_tiles(device, 130, 100, 3)


def sum_of_experts(device: Device) -> None:
    test_experts.test_sum(device, "amd", 5, 3, 36, True)


def grouped_rows(device: Device) -> None:
    test_experts.test_products_of_grouped_rows(device, "amd", "Q8_0")


def by_id(device: Device) -> None:
    test_experts.test_products_by_id(device, "amd", "Q8_0")


FROM_END, OTHER_SHARE = "float(X - expert)", "shares[t * (K + 1u) + K]"
EVERYWHERE = (
    (Mistake("the last of equal logits", "route.comp", "route", FROM_END, "float(expert + 1u)"), equal_logits),
    (Mistake("tiles too long", "group_rows.comp", "group_rows", "min(B, own[o] - r)", "B"), places),
    (
        Mistake("another's share", "add_experts.comp", "add_experts", OTHER_SHARE, OTHER_SHARE[:-4] + "]"),
        sum_of_experts,
    ),
    (
        Mistake("another slab's", "expert_tile.glsl", "matmul_hybrid_experts_q8_0", "expert < experts", "true"),
        grouped_rows,
    ),
    (Mistake("another slab's", "matvec.comp", "matvec_experts_q8_0", "if (expert >= experts) return;", ""), by_id),
    (Mistake("another expert's row", "matvec.comp", "matvec_experts_q8_0", "own_rows != 0u", "own_rows == 0u"), by_id),
)
BY_CHANCE = ((no_barrier("group_rows", "group_rows.comp", 0), places),)
