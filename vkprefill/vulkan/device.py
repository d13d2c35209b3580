"""The Vulkan device through kp: memory with accounting, uploads, programs. The only module that imports kp.

What kp 0.9 does not do is done here once: it ignores failed allocations (so every byte is checked before), wraps sizes
of 4 GiB (refused), takes integers for floats (constants are packed by the shader's own declaration) and has no barrier
between dispatches (Program). See ARCHITECTURE.md, "From dispatch to barrier".
"""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

import numpy as np

from vkprefill.errors import DeviceError, OutOfMemoryError
from vkprefill.vulkan import companion
from vkprefill.vulkan.allocation import Allocation, Ledger, last_serial
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.host_memory import free_ram_bytes
from vkprefill.vulkan.pipelines import Pipelines
from vkprefill.vulkan.probe import DeviceInfo, choose, probe
from vkprefill.vulkan.profiles import AMD, Profile, profile_for
from vkprefill.vulkan.program import Program
from vkprefill.vulkan.shaders import Shader
from vkprefill.vulkan.switches import BARRIER, switched_off
from vkprefill.vulkan.timing import Recording

log = logging.getLogger("vkprefill")

UPLOAD_SLICE_BYTES = 16 << 20
# Kept free on a CPU device, whose memory is everybody's: below this the machine starts to swap or to kill.
CPU_RESERVE_BYTES = 512 << 20
WHOSE = {"device": "the GPU's memory", "host": "memory shared with the CPU"}
DRIVER_VARIABLES = ("RADV_PERFTEST", "VK_LAYER_PATH", "VK_ADD_LAYER_PATH")


def _import_kp():
    try:
        import kp
    except ImportError as error:
        raise DeviceError(f"kp (Kompute's Python package) cannot be imported: {error}; run: make setup") from None
    return kp


@contextmanager
def _environment_of_the_driver(info: DeviceInfo) -> Iterator[None]:
    """What the Vulkan loader and the driver should find while they make kp's instance; afterwards, and for child
    processes, all is as before.
    """
    before = {name: os.environ.get(name) for name in DRIVER_VARIABLES}
    if info.vendor_id == AMD:
        ask_for_waves_of_32(os.environ)
    hide_layers(os.environ)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def hide_layers(environment: MutableMapping[str, str]) -> None:
    """Unless the user asks for layers: a kp built without our switches turns the validation layer on by itself. The
    loader is sent to look in this folder, where there is none and only those who can change this code can put one.
    """
    if "VK_LAYER_PATH" not in environment and "VK_INSTANCE_LAYERS" not in environment:
        environment["VK_LAYER_PATH"] = str(Path(__file__).parent)
        environment["VK_ADD_LAYER_PATH"] = ""


def ask_for_waves_of_32(environment: MutableMapping[str, str]) -> None:
    """Ask RADV, AMD's driver in Mesa, for waves of 32 in large workgroups too: RDNA GPUs issue two instructions at once
    in them. It reads the variable when an instance is made; other drivers do not.
    """
    wanted = environment.get("RADV_PERFTEST", "").split(",")
    if "cswave32" not in wanted:
        environment["RADV_PERFTEST"] = ",".join([*filter(None, wanted), "cswave32"])


def why_no_barrier() -> str:
    """Why every dependency level is a submission of its own; empty where our own kp operation stands between them."""
    if why := switched_off(BARRIER):
        return why
    try:
        import vkprefill._barrier  # noqa: F401
    except ImportError as error:
        return f"not available: {error}"
    return ""


def _import_barrier() -> type | None:
    """Our own kp operation, or None."""
    if why := why_no_barrier():
        log.info("barrier operation %s: one submission for each dependency level", why)
        return None
    from vkprefill._barrier import Barrier

    return Barrier


class Spare(Protocol):
    """Who keeps memory that it could do without."""

    def free_spare(self) -> None: ...


class Device:
    """One open Vulkan device. Use `Device.open`."""

    one_by_one = False  # programs made while it is set submit each dispatch on its own, so that it can be timed
    recording: Recording | None = None  # programs made while it is set report their times to it
    abilities = companion.Abilities()

    def __init__(self, info: DeviceInfo) -> None:
        self.info = info
        self.profile: Profile = profile_for(info)
        self._ledger = Ledger()
        self.spare: WeakSet[Spare] = WeakSet()  # asked to give back what it keeps for later when memory runs out
        self.lost = False
        self.closed = False
        self._staging: Buffer | None = None
        self._native = self._context = None  # the companion and its device, where it is used
        self._connect()

    def _connect(self) -> None:
        """All that needs the driver."""
        self._kp = _import_kp()
        self._barrier = _import_barrier()
        try:
            with _environment_of_the_driver(self.info):
                self._open_manager()
            self.pipelines = Pipelines(self._kp, self._manager, self._native, self._context)
        except RuntimeError as error:
            raise DeviceError(f"device {self.info.index} ({self.info.name}): cannot be opened: {error}") from None

    def _open_manager(self) -> None:
        """By the native companion where it is there, with features on; else by kp."""
        try:
            self._native = companion.load()
        except companion.Absent as absent:
            log.info("native companion %s: no feature is on", absent)
            self.abilities = companion.Abilities(absent=str(absent))
            self._manager = self._kp.Manager(self.info.index)
            return
        self._context = self._native.Context(self.info.index)
        self.abilities = companion.Abilities.of(self._context.about())
        self._manager = self._context.manager()

    @classmethod
    def open(cls, wanted: str | int | None = None) -> Device:
        """Open the device with this index or part of its name (None: the best there is). Raises DeviceError."""
        return cls(choose(wanted))

    @property
    def has_barrier(self) -> bool:
        return self._barrier is not None

    @property
    def shares_pipelines(self) -> bool:
        """Whether a program over pipelines that others have costs next to nothing."""
        return self._native is not None

    @contextmanager
    def record_times(self) -> Iterator[Recording]:
        """Programs made inside report the time of each of their dispatches, also later. Raises DeviceError on a device
        without timestamps.
        """
        if why := self.abilities.untimed:
            raise DeviceError(f"{self.info.name}: kernels cannot be timed on the device: {why}")
        self.recording = Recording(self._native, self._context)
        try:
            yield self.recording
        finally:
            self.recording = None

    def check_open(self) -> None:
        """Raise DeviceError once the device is closed: kp would crash."""
        if self.closed:
            raise DeviceError(f"{self.info.name}: the device is closed; load the model again")

    # -- memory --------------------------------------------------------------------------------------------------------

    @property
    def allocated(self) -> Counter[str]:
        """Bytes by kind of all that is not given back."""
        self._finish_giving_back()
        return self._ledger.by_kind()

    def give_back(self, owner: Allocation) -> None:
        """For Allocation.free. Each step can be repeated, so one that was interrupted is finished by another call."""
        if self.closed:
            return
        self.pipelines.forget(owner.serial)
        if owner.tensor is not None:
            owner.tensor.destroy()
            owner.tensor = None
        self._ledger.close(owner.serial)

    def _finish_giving_back(self) -> None:
        """What an interrupt kept an owner from giving back."""
        for serial, owner in self._ledger.unfinished():
            if owner is not None:
                owner.free()
            else:  # and its tensor with it, which kp frees when no algorithm holds it either
                self.pipelines.forget(serial)
                self._ledger.close(serial)

    @contextmanager
    def freed_on_error(self) -> Iterator[None]:
        """What is allocated inside goes at once when an exception ends the block, not when its traceback goes. The
        host slice for transfers stays.
        """
        start = last_serial()
        try:
            yield
        except BaseException:
            kept = self._staging.owner if self._staging else None
            for owner in self._ledger.since(start):
                if owner is not kept:
                    owner.free()
            raise

    def available_bytes(self, memory: str = "device") -> int:
        """What may still be allocated of "device" or of "host" memory; of both together where they are one.

        On a CPU device that is what the machine has free. On a GPU it is the heap that the memory comes from, or the
        driver's budget for it, less what is ours; beside a card, host memory is the machine's too. An APU's two heaps
        are cuts that the driver makes of the machine's memory and of what the firmware keeps for the GPU, which no
        other figure shows: they count as the driver states them.
        """
        info = self.info
        if info.type == "cpu":
            return max(0, free_ram_bytes() - CPU_RESERVE_BYTES)
        heap = info.heaps[info.device_heap if memory == "device" else info.host_heap]
        used = self._ledger.by_memory()
        left = heap.usable_bytes - (used.total() if info.one_memory else used[memory])
        if info.type == "discrete" and not heap.device_local:
            left = min(left, free_ram_bytes() - CPU_RESERVE_BYTES)
        return max(0, left)

    def require(self, num_bytes: int, what: str, *, host_bytes: int = 0) -> None:
        """Raise OutOfMemoryError unless num_bytes of device memory and host_bytes of host memory are available."""
        if self.info.type != "cpu" and any(heap.budget_bytes is not None for heap in self.info.heaps):
            self.info = replace(self.info, heaps=probe()[self.info.index].heaps)  # others may have taken some since
        if self.info.one_memory:
            self._require(num_bytes + host_bytes, what, "device")
        else:
            self._require(num_bytes, what, "device")
            self._require(host_bytes, what, "host")

    def _require(self, num_bytes: int, what: str, memory: str) -> None:
        available = self.available_bytes(memory)
        if num_bytes > available and self.spare:
            for keeper in list(self.spare):
                keeper.free_spare()
            available = self.available_bytes(memory)
        if num_bytes > available:
            of_which = "" if self.info.one_memory else f" of {WHOSE[memory]}"
            raise OutOfMemoryError(
                f"{what}: needs {num_bytes / 2**20:,.0f} MiB{of_which}, "
                f"{self.info.name} has {available / 2**20:,.0f} MiB left"
            )

    def buffer(
        self,
        label: str,
        shape: Sequence[int],
        dtype: type = np.float32,
        *,
        memory: str = "device",
        kind: str = "scratch",
        filled_by_cpu: bool = False,
    ) -> Buffer:
        """Allocate an array; its content is undefined. Raises OutOfMemoryError.

        filled_by_cpu: device memory that is made visible where the device is a CPU, at the price of being written once.
        """
        self.check_open()
        shape, dtype = tuple(int(n) for n in shape), np.dtype(dtype)
        num_bytes = math.prod(shape) * dtype.itemsize
        if dtype.itemsize != 4 or num_bytes == 0:
            raise TypeError(f"{label}: buffers hold 4-byte items, at least one; got {shape} {dtype}")
        if num_bytes > min(self.info.max_buffer_bytes, 2**32 - 4):
            limit = min(self.info.max_buffer_bytes, 2**32 - 4)
            raise OutOfMemoryError(
                f"{label}: {num_bytes / 2**20:,.0f} MiB in one buffer, {self.info.name} allows {limit / 2**20:,.0f} MiB"
            )
        self._require(num_bytes, label, memory)
        visible = memory == "host" or (filled_by_cpu and self.info.type == "cpu")
        types = self._kp.TensorTypes
        owner = Allocation(self)
        self._ledger.open(owner, kind, memory, num_bytes)
        # An untouched np.empty gives kp the size without committing host memory.
        owner.tensor = self._manager.tensor_t(
            np.empty(num_bytes // 4, np.uint32), types.host if visible else types.storage
        )
        return Buffer(label, shape, dtype, memory, kind, owner, visible=visible)

    def host_array(self, label: str, values: np.ndarray, *, kind: str = "scratch") -> Buffer:
        """A host buffer with this content."""
        buffer = self.buffer(label, values.shape, values.dtype, memory="host", kind=kind)
        buffer.view()[...] = values
        return buffer

    def upload(self, buffer: Buffer, slices: Iterable[np.ndarray]) -> None:
        """Fill a buffer with the concatenation of 4-byte arrays, through a host slice and a copy shader.

        Raises ValueError where they are not as long as the buffer; nothing is written past its end.
        """
        offset, end = buffer.offset, buffer.offset + buffer.num_bytes // 4
        for piece in slices:
            words = np.ascontiguousarray(piece).reshape(-1).view(np.uint32)
            for start in range(0, len(words), UPLOAD_SLICE_BYTES // 4):
                part = words[start : start + UPLOAD_SLICE_BYTES // 4]
                if offset + len(part) > end:
                    raise ValueError(f"{buffer.label}: more bytes uploaded than its {buffer.num_bytes}")
                self.staging.view()[: len(part)] = part
                self._copy(self.staging, buffer, 0, offset, len(part))
                offset += len(part)
        if (offset - buffer.offset) * 4 != buffer.num_bytes:
            raise ValueError(
                f"{buffer.label}: {(offset - buffer.offset) * 4} bytes uploaded to a buffer of {buffer.num_bytes}"
            )

    def clear(self, buffers: Sequence[Buffer]) -> None:
        """Fill whole buffers, no parts, with zeros."""
        program = self.program("clear")
        for buffer in buffers:
            program.fill(buffer)
        program.run()
        for buffer in buffers:  # bindings that nobody needs again
            self.pipelines.forget(buffer.serial)

    def download(self, buffer: Buffer) -> np.ndarray:
        """A copy of a device buffer's content."""
        words = np.empty(buffer.num_bytes // 4, np.uint32)
        for start in range(0, len(words), UPLOAD_SLICE_BYTES // 4):
            count = min(UPLOAD_SLICE_BYTES // 4, len(words) - start)
            self._copy(buffer, self.staging, buffer.offset + start, 0, count)
            words[start : start + count] = self.staging.view()[:count]
        return words.view(buffer.dtype).reshape(buffer.shape)

    @property
    def staging(self) -> Buffer:
        """The host slice that transfers go through."""
        if self._staging is None:
            self._staging = self.buffer("staging", (UPLOAD_SLICE_BYTES // 4,), np.uint32, memory="host", kind="staging")
        return self._staging

    def _copy(self, source: Buffer, target: Buffer, source_offset: int, target_offset: int, count: int) -> None:
        program = self.program("copy")
        program.copy(source, target, source_offset, target_offset, count)
        program.run()

    def operation(
        self,
        shader: Shader,
        buffers: Sequence[Buffer],
        workgroups: tuple[int, int, int],
        spec: np.ndarray,
        push: np.ndarray,
    ) -> object:
        """A kp operation that dispatches the shader. Raises DeviceError for one that needs a feature which is not on,
        or that the driver cannot compile.
        """
        if lacking := shader.features - self.abilities.features:
            raise DeviceError(
                f"shader {shader.name}: needs {', '.join(sorted(lacking))}; {self.info.name} has {self.abilities}"
            )
        try:
            return self.pipelines.operation(shader, buffers, workgroups, spec, push)
        except RuntimeError as error:
            raise DeviceError(f"shader {shader.name}: {self.info.name}: {error}") from None

    def program(self, name: str, *, step: Buffer | None = None, num_rows: int = 1) -> Program:
        """An empty program. step: the buffer that tells kernels how many of num_rows tokens are in use."""
        self.check_open()
        return Program(self, name, step, num_rows)

    def close(self) -> None:
        """Destroy the device with all its buffers and programs, which must not be used afterwards."""
        self.closed = True
        if self._manager is not None:
            self._manager.destroy()  # a second time, it does nothing
        self.pipelines.close()
        self._ledger.clear()
        self._manager = self._context = self._staging = None
