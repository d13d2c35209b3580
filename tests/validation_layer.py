"""What the tests under Vulkan's validation layer share: its settings, core and synchronisation, and what it says."""

import ctypes
import re
from pathlib import Path

LAYER = b"VK_LAYER_KHRONOS_validation"
SETTINGS = """\
khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG
khronos_validation.report_flags = error,warn
khronos_validation.log_filename = stdout
"""
# How synchronisation is switched on. Old layers (1.3.239 for one) know the first way only and pass over the second; new
# ones warn of the first.
BEFORE = "khronos_validation.enables = VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT\n"
SINCE = "khronos_validation.validate_sync = true\nkhronos_validation.syncval_shader_accesses_heuristic = true\n"
NEW = (1, 4, 309)
MESSAGE = re.compile(r"VUID-|SYNC-|UNASSIGNED-|Validation (Error|Warning)")

# All that a layer older than this extension of 2026 says of it and of its structure.
TOO_NEW = re.compile(
    r"unknown VkStructureType \(1000673000\)"
    r"|Extension VK_VALVE_shader_mixed_float_dot_product is not supported by this layer"
)


class _LayerProperties(ctypes.Structure):
    """VkLayerProperties."""

    _fields_ = [
        ("name", ctypes.c_char * 256),
        ("spec_version", ctypes.c_uint32),
        ("implementation_version", ctypes.c_uint32),
        ("description", ctypes.c_char * 256),
    ]


def layer_version() -> tuple[int, int, int]:
    """Of the layer that the loader finds; (0, 0, 0) without one, which the tests then notice."""
    vulkan, count = ctypes.CDLL("libvulkan.so.1"), ctypes.c_uint32()
    vulkan.vkEnumerateInstanceLayerProperties(ctypes.byref(count), None)
    layers = (_LayerProperties * count.value)()
    vulkan.vkEnumerateInstanceLayerProperties(ctypes.byref(count), layers)
    versions = [layer.spec_version for layer in layers if layer.name == LAYER]
    version = max(versions, default=0)
    return version >> 22, (version >> 12) & 0x3FF, version & 0xFFF


def layer_environment(folder: Path) -> dict[str, str]:
    """The variables that put the layer, with settings that lie in this folder, into a process."""
    settings = folder / "vk_layer_settings.txt"
    settings.write_text(SETTINGS + (BEFORE if layer_version() < NEW else "") + SINCE)
    return {"VK_INSTANCE_LAYERS": LAYER.decode(), "VK_LAYER_SETTINGS_PATH": str(settings)}


def messages(output: str) -> list[str]:
    """Lines of an output that the layer wrote about us."""
    return [line for line in output.splitlines() if MESSAGE.search(line) and not TOO_NEW.search(line)]
