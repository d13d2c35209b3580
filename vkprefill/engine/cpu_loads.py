"""Whether products on a CPU device load words one by one or two together: what its driver runs faster.

The time of one product in both forms, measured once and kept; the results are the same bits.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from gguf import GGMLQuantizationType

from vkprefill.engine import kernels
from vkprefill.engine.step import STEP_WORDS
from vkprefill.engine.weights import Matrix, MatrixPart
from vkprefill.gguf.quants import layout_of, packed_row_bytes
from vkprefill.kept import Kept
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.probe import DeviceInfo
from vkprefill.vulkan.processor import processor_code
from vkprefill.vulkan.profiles import CPU, CPU_WIDE, Profile, can_run, profile_for
from vkprefill.vulkan.shaders import fingerprint

# The wide profile's tiles are made for drivers on which every word loaded is dear. There it is 1.7 times as fast and
# more, elsewhere 0.9 to 1.15 times.
WORTH = 1.35
KIND, ROWS, COLUMNS = GGMLQuantizationType.Q4_K, 512, 1024
CALLS, RUNS = 8, 5


@dataclass(frozen=True)
class LoadTimes:
    """CPU seconds of one product with each form."""

    narrow: float
    wide: float

    @property
    def profile(self) -> Profile:
        return CPU_WIDE if self.narrow > WORTH * self.wide else CPU


TIMES = Kept("cpu-loads.json", LoadTimes)


def profile_so_far(info: DeviceInfo) -> Profile:
    """The profile of a device, by what was measured on it before."""
    profile = profile_for(info)
    times = TIMES.load().get(_key(info)) if profile is CPU else None
    return times.profile if times else profile


def choose_loads(device: Device) -> None:
    """Give a CPU device the profile that its driver runs faster. Takes a third of a second the first time."""
    if device.profile is not CPU or not can_run(CPU_WIDE, device.info, device.abilities.features):
        return
    times = TIMES.load().get(_key(device.info))
    if times is None:
        times = _measure(device)
        TIMES.store(_key(device.info), times)
    device.profile = times.profile


def _key(info: DeviceInfo) -> str:
    return "|".join((info.name, info.driver, processor_code(), fingerprint()))


def _measure(device: Device) -> LoadTimes:
    with device.freed_on_error():
        weights = device.host_array("weights", np.zeros((ROWS, packed_row_bytes(KIND, COLUMNS) // 4), np.uint32))
        x = device.host_array("x", np.zeros((1, COLUMNS), np.float32))
        y = device.host_array("y", np.zeros((1, ROWS), np.float32))
        step = device.host_array("step", np.zeros(STEP_WORDS, np.uint32))  # bound, not read: one row is in use
        matrix = Matrix("matrix", layout_of(KIND).name, ROWS, COLUMNS, (MatrixPart(0, ROWS, weights),))
        times = LoadTimes(*(_seconds(device, profile, step, x, matrix, y) for profile in (CPU, CPU_WIDE)))
        for buffer in (weights, x, y, step):
            buffer.free()
    return times


def _seconds(device: Device, profile: Profile, step: Buffer, x: Buffer, matrix: Matrix, y: Buffer) -> float:
    """CPU time of a product: the best of RUNS, which other work on the machine disturbs least."""
    own, device.profile = device.profile, profile
    try:
        program = device.program("loads", step=step)
        for _ in range(CALLS):
            kernels.linear(program, x, matrix, y)
    finally:
        device.profile = own
    program.run()  # compiles
    times = []
    for _ in range(RUNS):
        start = time.process_time()
        program.run()
        times.append(time.process_time() - start)
    return min(times) / CALLS
