"""What dispatches run with: compiled shaders and the buffers they are bound to, kept and shared.

kp has one Algorithm for a shader with its constants, buffers and grid, and a pipeline in each. A driver translates
every one anew, 10 to 90 ms each on a CPU. Through the native companion, dispatches of a shader with the same constants
share a pipeline, whatever they are bound to.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import numpy as np

from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.shaders import Shader

Grid = tuple[int, int, int]


class Pipelines:
    """Those of one device. kp, manager: kp and its manager; native, context: the companion and its device, or None.

    bound: (shader, numbers of the memory, ..) -> kp's Algorithm, or the companion's Binding.
    """

    def __init__(self, kp: ModuleType, manager: object, native: ModuleType | None, context: object | None) -> None:
        self._kp, self._manager, self._native, self._context = kp, manager, native, context
        self._shared: dict[tuple[str, bytes], object] = {}
        self.bound: dict[tuple, object] = {}

    def __len__(self) -> int:
        return len(self.bound if self._native is None else self._shared)

    def operation(
        self, shader: Shader, buffers: Sequence[Buffer], grid: Grid, constants: np.ndarray, push: np.ndarray
    ) -> object:
        """A kp operation that dispatches the shader. constants and push: u32. Raises RuntimeError of the driver."""
        key = (shader.name, tuple(b.serial for b in buffers), constants.tobytes())
        if self._native is None:
            key += (grid, len(push))
            algorithm = self.bound.get(key)
            if algorithm is None:
                tensors = [b.tensor for b in buffers]
                algorithm = self.bound[key] = self._manager.algorithm(tensors, shader.code, grid, constants, push)
            return self._kp.OpAlgoDispatch(algorithm, push)
        binding = self.bound.get(key)
        if binding is None:
            pipeline = self._pipeline(shader, constants.tobytes(), push.nbytes)
            binding = self.bound[key] = self._native.Binding(pipeline, [b.tensor for b in buffers])
        return self._native.Dispatch(binding, grid, push.tobytes())

    def _pipeline(self, shader: Shader, constants: bytes, push_bytes: int) -> object:
        key = (shader.name, constants)
        found = self._shared.get(key)
        if found is None:
            found = self._native.Pipeline(self._context, len(shader.bindings), push_bytes, shader.code, constants)
            self._shared[key] = found
        return found

    def forget(self, serial: int) -> None:
        """Drop what is bound to this memory."""
        for key in self.bound.copy():
            if serial in key[1]:
                self.bound.pop(key, None)

    def close(self) -> None:
        """Let go of all, the device too."""
        self.bound.clear()
        self._shared.clear()
        self._manager = self._context = None
