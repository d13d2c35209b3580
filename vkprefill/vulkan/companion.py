"""The native companion (native/companion.cpp) opens a device with features on: what it finds, or why it is not used.

Without it kp opens the device, with no feature on and no timestamps, and no dispatch shares a pipeline with another;
all else is as with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

from vkprefill.vulkan.switches import COMPANION, switched_off

DOT2 = frozenset({"shaderFloat16", "mixedFloatDotProduct"})


class Absent(Exception):
    """The companion is not used; the message says why."""


@dataclass(frozen=True)
class Abilities:
    """What a device is opened with.

    features: those of Vulkan that are on, by Vulkan's names; timestamps: whether kernels can be timed on the device;
    matrices: sizes (M, N, K) of its cooperative matrices that multiply halves into floats, which are not switched on;
    absent: why the companion is not used, None where it is.
    """

    features: frozenset[str] = frozenset()
    timestamps: bool = False
    matrices: tuple[tuple[int, int, int], ...] = ()
    absent: str | None = None

    @property
    def has_dot2(self) -> bool:
        """Whether shaders may use the instruction that adds two products of halves to a float32."""
        return self.features >= DOT2

    def __str__(self) -> str:
        if self.absent is not None:
            return f"no features on: native companion {self.absent}"
        timed = ", timestamps" if self.timestamps else ""
        return f"features on: {', '.join(sorted(self.features)) or 'none, its driver has none of ours'}{timed}"

    @property
    def untimed(self) -> str:
        """Why kernels cannot be timed on the device; empty where they can."""
        if self.absent is not None:
            return f"native companion {self.absent}"
        return "" if self.timestamps else "its driver has no timestamps"

    @classmethod
    def of(cls, about: dict) -> Abilities:
        """From the companion's own words."""
        return cls(frozenset(about["features"]), about["timestamps"], tuple(map(tuple, about["matrices"])))


def load() -> ModuleType:
    """The extension module. Raises Absent, RequestError."""
    if why := switched_off(COMPANION):
        raise Absent(why)
    return _import()


def _import() -> ModuleType:
    try:
        import vkprefill._companion as native
    except ImportError as error:
        raise Absent(f"not available: {error}") from None
    if not hasattr(native, "Pipeline"):
        raise Absent("not available: it was built from older sources; run: python tools/build_native.py")
    return native


def abilities(index: int) -> Abilities:
    """What the device with this index would be opened with."""
    try:
        return Abilities.of(load().describe(index))
    except (Absent, IndexError, RuntimeError) as error:
        return Abilities(absent=str(error))


def features_found(index: int) -> frozenset[str] | None:
    """Those of our features that the driver of the device with this index has, used or not; None where the companion,
    which asks for them, is not built.
    """
    try:
        return frozenset(_import().describe(index)["features"])
    except (Absent, IndexError, RuntimeError):
        return None
