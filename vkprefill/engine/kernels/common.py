"""What the kernels' functions share: checks of shapes, sizes of workgroups."""

from __future__ import annotations

from dataclasses import replace

from vkprefill.engine.halves import HalfRows
from vkprefill.errors import ShapeError
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.profiles import SHUFFLE_SUBGROUPS
from vkprefill.vulkan.program import Program

MAX_LOCAL_SIZE = 64
HALF_LANES = 128  # the most invocations that every Vulkan device has in a workgroup


def lanes_for(words: int, most: int) -> int:
    """Invocations for `words` pieces of work: a power of two from 8 on."""
    lanes = 8
    while lanes < min(words, most):
        lanes *= 2
    return lanes


def half_lanes(p: Program, width: int) -> int:
    """Invocations for a row that is kept in registers until its greatest value is known: each has few words of it."""
    local = p.device.profile.local_size
    return local if width <= 32 * local else max(local, HALF_LANES)


def half_words(kernel: str, half: HalfRows, width: int) -> Buffer:
    """The words of rows of `width` halves, [T', width / 2]; ShapeError where they do not fit."""
    rows, room = half.words.shape
    if width % 4 or room * 2 < width:
        raise ShapeError(f"{kernel}: rows of {width} halves, wanted a multiple of 4 and at most {room * 2}")
    return replace(half.words, shape=(rows, width // 2))


def shuffle_form(p: Program, *, has_wide: bool = False) -> tuple[str, dict[str, int]]:
    """Suffix and further constants of the shaders that have a form with shuffles (has_wide: and one with wide loads
    besides), where the profile wants it.
    """
    profile, subgroup = p.device.profile, p.device.info.subgroup_size
    assert not profile.shuffle or subgroup in SHUFFLE_SUBGROUPS
    suffix = "_shuffle_wide" if profile.wide and has_wide else "_shuffle"
    return (suffix, {"SUBGROUP": subgroup}) if profile.shuffle else ("", {})


def check_shapes(kernel: str, **shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """Each keyword: (found shape without rows, wanted shape without rows)."""
    for name, (found, wanted) in shapes.items():
        if tuple(found) != tuple(wanted):
            raise ShapeError(f"{kernel}: {name} has shape {tuple(found)}, wanted {tuple(wanted)}")
