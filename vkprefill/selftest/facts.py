"""What a report of a fault should say about the machine, the driver and the device, without anybody's names."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from vkprefill.benchmark.record import commit
from vkprefill.engine.cpu_loads import profile_so_far
from vkprefill.engine.halves import takes_halves
from vkprefill.errors import DeviceError
from vkprefill.selftest.driver_files import driver_files, why_no_driver
from vkprefill.selftest.forms import form_name
from vkprefill.vulkan import companion
from vkprefill.vulkan.device import why_no_barrier
from vkprefill.vulkan.host_memory import free_ram_bytes
from vkprefill.vulkan.probe import DeviceInfo, memory_of, probe
from vkprefill.vulkan.processor import processor
from vkprefill.vulkan.shaders import fingerprint, manifest

PACKAGES = ("vkprefill", "kp", "numpy", "gguf")
VARIABLES = ("VKPREFILL_", "VK_", "MESA_", "RADV_", "AMD_", "ANV_", "INTEL_", "LP_", "GALLIUM_", "GALLIVM_", "EMU_")


def of_machine() -> dict[str, object]:
    """What can be said without asking a driver, as JSON has it."""
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "commit": commit(),
        "shaders": fingerprint(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": asdict(processor()),
        "memory_free_bytes": free_ram_bytes(),
        "driver_files": [path.name for path in driver_files(os.environ)],
        "barrier": why_no_barrier() or "on",
        "variables": sorted(name for name in os.environ if name.startswith(VARIABLES)),
    }


def of_device(info: DeviceInfo) -> dict[str, object]:
    """What is known of the device and used of it. Opens none, but asks the driver."""
    profile, opened = profile_so_far(info), companion.abilities(info.index)
    wanted = {feature for entry in manifest().values() for feature in entry["features"]}
    found = companion.features_found(info.index)
    return {
        "devices": _listed(probe()),
        "device": asdict(info),
        "memory": memory_of(info),
        "features": {
            "on": sorted(opened.features),
            "found": None if found is None else sorted(found),
            "lacking": None if found is None else sorted(wanted - found),
        },
        "companion": opened.absent or "on",
        "timestamps": opened.timestamps,
        "profile": {"name": profile.name, "form": form_name(profile)},
        "precision_auto": "half" if takes_halves("auto", opened.has_dot2) else "full",
    }


def without_device() -> dict[str, object]:
    """Where none can be used: those there are, or what each driver's file says, of which this loads the library."""
    try:
        return {"device": None, "devices": _listed(probe()), "drivers": []}
    except DeviceError:
        files = [
            f"{path.name}: {why_no_driver(path) or 'its library can be loaded'}" for path in driver_files(os.environ)
        ]
        return {"device": None, "devices": [], "drivers": files}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _listed(devices: list[DeviceInfo]) -> list[str]:
    return [f"{device.index}: {device.name}" for device in devices]


def without_paths(value: object, home: str | None = None) -> object:
    """A copy of JSON's values whose texts name files without the folders they lie in, which tell who somebody is."""
    home = str(Path.home()) if home is None else home
    if isinstance(value, str):
        if len(home) > 1:
            value = value.replace(home, "/~")
        return re.sub(r"(?<![\w.])(?:/[\w.+@~-]+)+/(?=[\w.+@~-])", "", value)
    if isinstance(value, Mapping):
        return {key: without_paths(item, home) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(item, home) for item in value]
    return value
