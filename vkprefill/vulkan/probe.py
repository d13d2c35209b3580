"""The Vulkan devices of this machine, asked through ctypes on the Vulkan loader, before kp is touched.

kp.Manager() crashes the process where no driver is usable, so this module looks first. It also reports what kp does
not: memory heaps, limits, the driver's name. Structure layouts are those of vulkan_core.h (Vulkan 1.1,
VK_KHR_driver_properties and VK_EXT_memory_budget).
"""

from __future__ import annotations

import ctypes
import resource
import struct
from dataclasses import dataclass

from vkprefill.errors import DeviceError

_API_1_1 = (1 << 22) | (1 << 12)
_TYPES = {0: "other", 1: "integrated", 2: "discrete", 3: "virtual", 4: "cpu"}
_STRUCTURE_TYPE = {
    "application": 0,
    "instance": 1,
    "properties2": 1000059001,
    "memory2": 1000059006,
    "subgroup": 1000094000,
    "allocations": 1000168000,
    "driver": 1000196000,
    "subgroup sizes": 1000225000,
    "memory budget": 1000237000,
}
_LIMITS_OFFSET = 296  # of VkPhysicalDeviceLimits in VkPhysicalDeviceProperties
_PROPERTIES_BYTES = 824
_MEMORY_BYTES = 4 + 32 * 8 + 4 + 16 * 16  # of VkPhysicalDeviceMemoryProperties: 32 types, 16 heaps
_HEAP_DEVICE_LOCAL = 1
_TYPE_DEVICE_LOCAL, _TYPE_HOST = 0x1, 0x2 | 0x4  # visible and coherent
MIN_INVOCATIONS, MIN_SHARED_BYTES = 256, 32 << 10  # of a workgroup: what the largest kernels take
_SUBGROUP_NEEDS = {"basic": 0x1, "arithmetic": 0x4, "shuffle": 0x10}
_STAGE_COMPUTE = 0x20


@dataclass(frozen=True)
class Heap:
    """A heap of memory. num_bytes: its size; budget_bytes: what this process may take of it now, other processes' share
    off; None from a driver that does not say.
    """

    num_bytes: int
    device_local: bool
    budget_bytes: int | None = None

    @property
    def usable_bytes(self) -> int:
        return self.num_bytes if self.budget_bytes is None else min(self.num_bytes, self.budget_bytes)


@dataclass(frozen=True)
class DeviceInfo:
    """One Vulkan device.

    index: its number for kp; type: integrated, discrete, virtual, cpu or other; vendor_id: PCI number; heaps: all there
    are, of which we use two: device_heap, where "device" memory comes from, and host_heap, for "host" memory (numbers
    of heaps, often the same); subgroup_size: of a shader that asks for none, min_subgroup_size: the least that the
    device can do, max_subgroup_size: the most; max_buffer_bytes: longest storage buffer binding; max_allocation_bytes:
    largest piece of memory, 0 from a driver that does not say; missing: what this engine needs and the device lacks.
    """

    index: int
    name: str
    type: str
    vendor_id: int
    driver: str
    api_version: str
    heaps: tuple[Heap, ...]
    device_heap: int
    host_heap: int
    subgroup_size: int
    min_subgroup_size: int
    max_buffer_bytes: int
    max_workgroup_invocations: int
    max_shared_bytes: int
    missing: tuple[str, ...]
    max_subgroup_size: int = 0
    max_allocation_bytes: int = 0

    @property
    def one_memory(self) -> bool:
        """Whether "device" and "host" memory come from the same heap; on a CPU device all is the machine's."""
        return self.type == "cpu" or self.device_heap == self.host_heap


class _ApplicationInfo(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_uint32),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("version", ctypes.c_uint32),
        ("engine", ctypes.c_char_p),
        ("engine_version", ctypes.c_uint32),
        ("api_version", ctypes.c_uint32),
    ]


class _InstanceCreateInfo(ctypes.Structure):
    _fields_ = [
        ("type", ctypes.c_uint32),
        ("next", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("application", ctypes.POINTER(_ApplicationInfo)),
        ("num_layers", ctypes.c_uint32),
        ("layers", ctypes.c_void_p),
        ("num_extensions", ctypes.c_uint32),
        ("extensions", ctypes.c_void_p),
    ]


class _Chained:
    """A structure with a head (type, next) and a zeroed body, filled in by the driver."""

    def __init__(self, structure_type: int, body_bytes: int, next_structure: _Chained | None = None) -> None:
        self.buffer = ctypes.create_string_buffer(16 + body_bytes)
        self._next = next_structure
        pointer = ctypes.addressof(next_structure.buffer) if next_structure else 0
        struct.pack_into("<IxxxxQ", self.buffer, 0, structure_type, pointer)

    def unpack(self, form: str, offset: int = 0) -> tuple:
        return struct.unpack_from("<" + form, self.buffer, 16 + offset)


def _text(raw: bytes) -> str:
    return raw.split(b"\0")[0].decode(errors="replace")


def probe() -> list[DeviceInfo]:
    """All Vulkan devices, in kp's order. Raises DeviceError when there is no loader, no driver or no device."""
    try:
        vulkan = ctypes.CDLL("libvulkan.so.1")
    except OSError as error:
        raise DeviceError(
            f"Vulkan loader: libvulkan.so.1 cannot be loaded ({error}); install the package libvulkan1"
        ) from None
    application = _ApplicationInfo(_STRUCTURE_TYPE["application"], None, b"vkprefill", 1, b"vkprefill", 1, _API_1_1)
    create = _InstanceCreateInfo(_STRUCTURE_TYPE["instance"], None, 0, ctypes.pointer(application), 0, None, 0, None)
    instance = ctypes.c_void_p()
    if result := vulkan.vkCreateInstance(ctypes.byref(create), None, ctypes.byref(instance)):
        raise DeviceError(
            f"Vulkan: vkCreateInstance gave {result}: no usable driver; install mesa-vulkan-drivers or your GPU's"
        )
    try:
        count = ctypes.c_uint32()
        result = vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None)
        handles = (ctypes.c_void_p * count.value)()
        result = result or vulkan.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), handles)
        if result < 0 or count.value == 0:
            raise DeviceError(f"Vulkan: no device found; {_why_none()}")
        return [_describe(vulkan, index, ctypes.c_void_p(handles[index])) for index in range(count.value)]
    finally:
        vulkan.vkDestroyInstance(instance, None)


def _why_none() -> str:
    """A driver that cannot be loaded is none to the loader."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_AS)
    if allowed != resource.RLIM_INFINITY:
        return f"is the memory enough? this process may take {allowed / 2**20:,.0f} MiB of addresses (ulimit -v)"
    return "install mesa-vulkan-drivers (it has a CPU device too) or your GPU's driver"


def _describe(vulkan: ctypes.CDLL, index: int, handle: ctypes.c_void_p) -> DeviceInfo:
    driver = _Chained(_STRUCTURE_TYPE["driver"], 4 + 256 + 256 + 4)
    subgroup_sizes = _Chained(_STRUCTURE_TYPE["subgroup sizes"], 16, driver)  # zero from a driver without them
    allocations = _Chained(_STRUCTURE_TYPE["allocations"], 16, subgroup_sizes)
    subgroup = _Chained(_STRUCTURE_TYPE["subgroup"], 16, allocations)
    properties = _Chained(_STRUCTURE_TYPE["properties2"], _PROPERTIES_BYTES, subgroup)
    vulkan.vkGetPhysicalDeviceProperties2(handle, properties.buffer)
    api, _, vendor, _, kind = properties.unpack("5I")
    subgroup_size, stages, operations = subgroup.unpack("3I")
    driver_name, driver_info = _text(driver.unpack("256s", 4)[0]), _text(driver.unpack("256s", 260)[0])

    types, heaps = _memory(vulkan, handle)
    missing = [f"subgroup {name}" for name, bit in _SUBGROUP_NEEDS.items() if not operations & bit]
    if not stages & _STAGE_COMPUTE:
        missing.append("subgroup operations in compute shaders")
    invocations, shared_bytes = (properties.unpack("I", _LIMITS_OFFSET + at)[0] for at in (232, 216))
    if invocations < MIN_INVOCATIONS:
        missing.append(f"workgroups of {MIN_INVOCATIONS} invocations (it has {invocations})")
    if shared_bytes < MIN_SHARED_BYTES:
        missing.append(f"{MIN_SHARED_BYTES} bytes of shared memory (it has {shared_bytes})")
    if api < _API_1_1:
        missing.append("Vulkan 1.1")
    if not types:
        missing.append("memory")
    return DeviceInfo(
        index=index,
        name=_text(properties.unpack("256s", 20)[0]),
        type=_TYPES.get(kind, "other"),
        vendor_id=vendor,
        driver=f"{driver_name} {driver_info}".strip(),
        api_version=f"{api >> 22}.{(api >> 12) & 1023}.{api & 4095}",
        heaps=heaps,
        device_heap=_heap_of(types, _TYPE_DEVICE_LOCAL),
        host_heap=_heap_of(types, _TYPE_HOST),
        subgroup_size=subgroup_size,
        min_subgroup_size=subgroup_sizes.unpack("I")[0] or subgroup_size,
        max_buffer_bytes=properties.unpack("I", _LIMITS_OFFSET + 28)[0],
        max_workgroup_invocations=invocations,
        max_shared_bytes=shared_bytes,
        missing=tuple(missing),
        max_subgroup_size=subgroup_sizes.unpack("2I")[1] or subgroup_size,
        max_allocation_bytes=allocations.unpack("Q", 8)[0],
    )


def _memory(vulkan: ctypes.CDLL, handle: ctypes.c_void_p) -> tuple[list[tuple[int, int]], tuple[Heap, ...]]:
    """((flags, heap) of every memory type, heaps)."""
    budget = _Chained(_STRUCTURE_TYPE["memory budget"], 2 * 16 * 8)
    known = "VK_EXT_memory_budget" in _extensions(vulkan, handle)
    memory = _Chained(_STRUCTURE_TYPE["memory2"], _MEMORY_BYTES, budget if known else None)
    vulkan.vkGetPhysicalDeviceMemoryProperties2(handle, memory.buffer)
    types = [memory.unpack("2I", 4 + 8 * i) for i in range(memory.unpack("I")[0])]
    heaps = []
    for i in range(memory.unpack("I", 260)[0]):
        size, flags = memory.unpack("QI", 264 + 16 * i)
        heaps.append(Heap(size, bool(flags & _HEAP_DEVICE_LOCAL), budget.unpack("Q", 8 * i)[0] if known else None))
    return types, tuple(heaps)


def _heap_of(types: list[tuple[int, int]], flags: int) -> int:
    """The heap of the first memory type with these flags, which is the one that kp takes. Vulkan's order puts types
    with more flags later, so a small window into a GPU's memory for the CPU (a BAR) is never meant.
    """
    return next((heap for has, heap in types if has & flags == flags), 0)


def _extensions(vulkan: ctypes.CDLL, handle: ctypes.c_void_p) -> set[str]:
    """Names of the extensions that a device has."""
    count = ctypes.c_uint32()
    vulkan.vkEnumerateDeviceExtensionProperties(handle, None, ctypes.byref(count), None)
    records = ctypes.create_string_buffer(260 * max(1, count.value))
    vulkan.vkEnumerateDeviceExtensionProperties(handle, None, ctypes.byref(count), records)
    return {_text(records[260 * i : 260 * i + 256]) for i in range(count.value)}


def choose(wanted: str | int | None = None) -> DeviceInfo:
    """The device with the index or part of the name `wanted`; None: the fastest kind (discrete, integrated, ..., cpu).

    Raises DeviceError when nothing fits, or when the device lacks what the engine needs.
    """
    devices = probe()
    listing = ", ".join(f"{d.index}: {d.name}" for d in devices)
    if wanted is None:
        order = ["discrete", "integrated", "virtual", "other", "cpu"]
        usable = [d for d in devices if not d.missing] or devices
        chosen = min(usable, key=lambda d: order.index(d.type))
    elif str(wanted).isdecimal():
        if int(wanted) >= len(devices):
            many = "" if len(devices) == 1 else "s"
            raise DeviceError(f"device {wanted}: found {len(devices)} Vulkan device{many} ({listing})")
        chosen = devices[int(wanted)]
    else:
        matches = [d for d in devices if str(wanted) and str(wanted).lower() in d.name.lower()]
        if len(matches) != 1:
            raise DeviceError(f"device {wanted!r}: {len(matches) or 'no'} devices have this in their name ({listing})")
        chosen = matches[0]
    if chosen.missing:
        raise DeviceError(
            f"device {chosen.index} ({chosen.name}): lacks {', '.join(chosen.missing)}, which the kernels need"
        )
    return chosen


def memory_of(device: DeviceInfo) -> str:
    """The heaps that we take memory from, in words."""

    def size(index: int) -> str:
        heap = device.heaps[index]
        free = "" if heap.budget_bytes is None else f" ({heap.budget_bytes / 2**30:.1f} GiB free now)"
        return f"{heap.num_bytes / 2**30:.1f} GiB{free}"

    if not device.heaps:
        return "none"
    if device.type == "cpu":
        return "the machine's"
    if device.one_memory:
        return f"{size(device.device_heap)}, shared with the CPU"
    beside = f"{size(device.host_heap)} shared with the CPU"
    if device.type == "integrated":
        return f"{size(device.device_heap)} and {beside}: the driver's division of the machine's memory"
    return f"{size(device.device_heap)} of its own, {beside}"
