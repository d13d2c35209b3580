"""The Vulkan device that shader and model tests share."""

import os

import pytest

from vkprefill.device import Device, _import_barrier
from vkprefill.errors import DeviceError
from vkprefill.vulkan_probe import choose

# Opening a device hides Vulkan layers from this process (device.py); processes that tests start must not inherit that.
LAYER_VARIABLES = {name: os.environ.get(name) for name in ("VK_LAYER_PATH", "VK_ADD_LAYER_PATH")}


@pytest.fixture(autouse=True)
def layer_variables_as_at_the_start() -> None:
    for name, value in LAYER_VARIABLES.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def pytest_report_header() -> str:
    try:
        info = choose(None)
    except DeviceError as error:
        return f"vulkan: none ({error})"
    barrier = "available" if _import_barrier() else "not built: one submission per dependency level"
    device = f"{info.name} ({info.type}), driver {info.driver}, subgroups of {info.subgroup_size}"
    return f"vulkan: {device}; barrier operation {barrier}"


@pytest.fixture(scope="session")
def device():
    """The best device there is. Its profile may be replaced by a test that puts it back."""
    try:
        opened = Device.open()
    except DeviceError as error:
        pytest.skip(f"no Vulkan device: {error}")
    yield opened
    opened.close()
