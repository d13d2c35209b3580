"""Mistakes in the kernels that choose candidates, each with the test that must fail of it.

EVERYWHERE, BY_CHANCE and HIDDEN say who shows them, as in test_planted_mistakes.py.
"""

from tests.shaders import test_top_k
from tests.shaders.planting import Mistake, no_barrier
from vkprefill.vulkan.device import Device


def top_k(device: Device) -> None:
    test_top_k.test_sizes(device, "amd", 4097, 20)


def penalties(device: Device) -> None:
    test_top_k.test_rows_have_the_penalties_of_tokens_before_them(device, "amd", 8, 8, 97, 33)


def masks(device: Device) -> None:
    test_top_k.test_only_allowed_tokens_are_candidates(device, "amd", 65, 64, 0.5)


EVERYWHERE = (
    (no_barrier("top_k", "top_k.comp", 0), top_k),
    (no_barrier("top_k", "top_k.comp", 1), top_k),
    (
        Mistake("a row lowers its successor too", "candidates.glsl", "top_k_blocks", "i <= row", "i <= row + 1u"),
        penalties,
    ),
    (Mistake("a row leaves out its own token", "candidates.glsl", "top_k", "i <= row", "i < row"), penalties),
    (Mistake("the run's first token lowered", "candidates.glsl", "top_k_blocks", "i = 1u", "i = 0u"), penalties),
    (
        Mistake("a row reads the first one's mask", "candidates.glsl", "top_k_blocks", "1u + row * (", "1u + 0u * ("),
        masks,
    ),
    (Mistake("masks of another vocabulary", "candidates.glsl", "top_k", "(V + 31u) / 32u", "V / 32u"), masks),
    (Mistake("lowered twice", "candidates.glsl", "top_k_blocks", "bits |= 1u", "bits += 1u"), penalties),
)
