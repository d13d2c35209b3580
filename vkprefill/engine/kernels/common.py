"""What the kernels' functions share: checks of shapes, sizes of workgroups."""

from __future__ import annotations

from vkprefill.errors import ShapeError
from vkprefill.vulkan.profiles import SHUFFLE_SUBGROUPS
from vkprefill.vulkan.program import Program

MAX_LOCAL_SIZE = 64


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def lanes_for(words: int, most: int) -> int:
    """Invocations for `words` pieces of work: a power of two from 8 on."""
    lanes = 8
    while lanes < min(words, most):
        lanes *= 2
    return lanes


def shuffle_form(p: Program) -> tuple[str, dict[str, int]]:
    """Suffix and further constants of the shaders that have a form with shuffles, where the profile wants it."""
    assert not p.device.profile.shuffle or p.device.info.subgroup_size in SHUFFLE_SUBGROUPS
    return ("_shuffle", {"SUBGROUP": p.device.info.subgroup_size}) if p.device.profile.shuffle else ("", {})


def check_shapes(kernel: str, **shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """Each keyword: (found shape without rows, wanted shape without rows)."""
    for name, (found, wanted) in shapes.items():
        if tuple(found) != tuple(wanted):
            raise ShapeError(f"{kernel}: {name} has shape {tuple(found)}, wanted {tuple(wanted)}")
