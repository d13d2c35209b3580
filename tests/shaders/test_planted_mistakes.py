"""Would the kernels' tests notice a mistake in a shader? Each one here must fail the tests beside it.

Mesa's driver for the CPU cannot show all of them: it rounds halves as they should be, runs the subgroups of a workgroup
in their order, each of eight invocations, and reads nothing past a buffer's end. What it misses (HIDDEN) must be seen
on the emulated GPU (make test-780m), which runs the waves of a workgroup in random orders and counts what lies outside.
"""

import os
from collections.abc import Callable
from unittest import mock

import pytest

from tests.emulated import Dispatches, faults, is_emulated
from tests.shaders import (
    mistakes_of_attention,
    mistakes_of_candidates,
    mistakes_of_delta_net,
    mistakes_of_experts,
    mistakes_of_norms,
    mistakes_of_points,
    mistakes_of_products,
)
from tests.shaders.planting import Mistake, planted
from tools.compile_shaders import SHADERS
from vkprefill.vulkan.device import Device

Test = Callable[[Device], None]
ORDERS = range(1, 9)  # of waves, on the emulated GPU
LAVAPIPE = "llvmpipe"  # how the device of Mesa's driver for the CPU is named

# What every driver shows.
EVERYWHERE = (
    mistakes_of_attention.EVERYWHERE
    + mistakes_of_norms.EVERYWHERE
    + mistakes_of_products.EVERYWHERE
    + mistakes_of_candidates.EVERYWHERE
    + mistakes_of_delta_net.EVERYWHERE
    + mistakes_of_points.EVERYWHERE
    + mistakes_of_experts.EVERYWHERE
)
# What the emulated GPU shows, and elsewhere what shared memory held before decides.
BY_CHANCE = mistakes_of_products.BY_CHANCE + mistakes_of_experts.BY_CHANCE
# What only the emulated GPU shows.
HIDDEN = mistakes_of_attention.HIDDEN + mistakes_of_products.HIDDEN


@pytest.fixture(autouse=True)
def known_driver(device) -> None:
    if not is_emulated(device) and LAVAPIPE not in device.info.name:
        pytest.skip("this driver shows other mistakes")


def noticed(device: Device, dispatches: Dispatches, test: Test) -> bool:
    """Whether the test fails, or the emulated GPU finds a fault, in any order of waves."""
    for order in ORDERS if is_emulated(device) else (None,):
        with mock.patch.dict(os.environ, {"EMU_ORDER": str(order)} if order else {}):
            try:
                test(device)
            except AssertionError:
                dispatches.take()
                return True
        if faults(dispatches.take()):
            return True
    return False


def title(value: object) -> str:
    return f"{value.shader}: {value.title}" if isinstance(value, Mistake) else ""


@pytest.mark.parametrize(
    "test", dict.fromkeys(test for _, test in EVERYWHERE + HIDDEN + BY_CHANCE), ids=lambda test: test.__name__
)
def test_right_kernels_pass(device, dispatches, test):
    assert not noticed(device, dispatches, test)


@pytest.mark.parametrize(("mistake", "test"), EVERYWHERE, ids=title)
def test_mistake_is_noticed(device, dispatches, mistake, test):
    with planted(mistake):
        assert noticed(device, dispatches, test)


@pytest.mark.parametrize(("mistake", "test"), HIDDEN, ids=title)
def test_mistake_is_noticed_on_the_emulated_gpu_only(device, dispatches, mistake, test):
    with planted(mistake):
        assert noticed(device, dispatches, test) == is_emulated(device)


@pytest.mark.parametrize(("mistake", "test"), BY_CHANCE, ids=title)
def test_mistake_is_noticed_by_chance_elsewhere(device, dispatches, mistake, test):
    with planted(mistake):
        assert noticed(device, dispatches, test) or not is_emulated(device)


def test_every_barrier_is_removed_once():
    there = {
        (path.name, place)
        for path in SHADERS.rglob("*.*")
        if path.suffix in (".comp", ".glsl")
        for place in range(path.read_text().count("barrier();"))
    }
    removed = {
        (mistake.file, mistake.place) for mistake, _ in EVERYWHERE + HIDDEN + BY_CHANCE if mistake.right == "barrier();"
    }
    assert removed == there
