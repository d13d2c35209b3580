"""A typed array on the device."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from vkprefill.errors import DeviceError
from vkprefill.vulkan.allocation import Allocation


@dataclass(frozen=True)
class Buffer:
    """A typed array on the device.

    memory: "device" (fast) or "host" (the CPU's too); visible: whether the CPU sees it; kind: what the memory bill
    counts it under; owner: of the memory, which goes when the last buffer or program that holds it is dropped; offset:
    of a part of another buffer, in items of 4 bytes: kernels that take parts are told it, the whole buffer is bound.
    """

    label: str
    shape: tuple[int, ...]
    dtype: np.dtype
    memory: str
    kind: str
    owner: Allocation = field(repr=False)
    offset: int = 0
    visible: bool = False

    def part(self, label: str, offset: int, shape: tuple[int, ...]) -> Buffer:
        """A part of this buffer, offset items in. It shares the memory, and its owner."""
        return replace(self, label=label, shape=shape, offset=self.offset + offset)

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def serial(self) -> int:
        """Which memory this is: parts of one buffer have the same."""
        return self.owner.serial

    @property
    def tensor(self) -> object:
        """kp's object. Raises DeviceError once the device is closed or the memory freed: kp would crash."""
        self.owner.device.check_open()
        if self.owner.freed:
            raise DeviceError(f"{self.label}: was freed, with the model or cache it belonged to; make a new one")
        return self.owner.tensor

    def view(self) -> np.ndarray:
        """The memory of a visible buffer itself; must not outlive the buffer."""
        tensor = self.tensor
        if not self.visible:
            raise TypeError(f"{self.label}: device memory is not visible to the CPU")
        words = tensor.data()[self.offset : self.offset + math.prod(self.shape)]
        return words.view(self.dtype).reshape(self.shape)

    def read(self) -> np.ndarray:
        """A copy of the content; device memory comes through a host slice."""
        return self.view().copy() if self.visible else self.owner.device.download(self)

    def free(self) -> None:
        """Give the memory back now, of all parts; freeing twice does nothing."""
        self.owner.free()
