"""A typed array on the device."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from vkprefill.vulkan.device import Device


@dataclass
class Buffer:
    """A typed array on the device.

    memory: "device" (fast, not visible to the CPU) or "host" (visible to both); kind: what the memory bill counts it
    under; offset: of a part of another buffer, in items of 4 bytes: kernels that take parts are told it, the whole
    buffer is bound.
    """

    label: str
    shape: tuple[int, ...]
    dtype: np.dtype
    memory: str
    kind: str
    tensor: object = field(repr=False)
    device: Device = field(repr=False)
    offset: int = 0

    def part(self, label: str, offset: int, shape: tuple[int, ...]) -> Buffer:
        """A part of this buffer, offset items in. It shares the memory: free the whole, not the part."""
        return replace(self, label=label, shape=shape, offset=self.offset + offset)

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def view(self) -> np.ndarray:
        """The memory of a host buffer itself; must not outlive the buffer."""
        self.device.check_open()
        if self.memory != "host":
            raise TypeError(f"{self.label}: device memory is not visible to the CPU")
        words = self.tensor.data()[self.offset : self.offset + math.prod(self.shape)]
        return words.view(self.dtype).reshape(self.shape)

    def read(self) -> np.ndarray:
        """A copy of the content; device memory comes through a host slice."""
        return self.view().copy() if self.memory == "host" else self.device.download(self)

    def free(self) -> None:
        if self.tensor is not None and not self.device.closed:
            self.device.forget_algorithms(self)
            self.tensor.destroy()
            self.device.allocated[self.kind] -= self.num_bytes
        self.tensor = None
