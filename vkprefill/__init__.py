"""Qwen3.5 GGUF models on any Vulkan GPU: every layer a compute shader, dispatched through Kompute.

A name is imported when it is first asked for: the command line answers Ctrl-C from its first moment.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vkprefill.drafting.settings import SpecDecodeConfig
    from vkprefill.engine.cache import Cache, Snapshot
    from vkprefill.engine.capture import AttentionCapture
    from vkprefill.engine.microscope.activations import ActivationCache
    from vkprefill.engine.microscope.edits import Edit
    from vkprefill.engine.microscope.steering import Steer
    from vkprefill.engine.model import Model, load
    from vkprefill.errors import (
        ContextLengthError,
        DeviceError,
        GGUFError,
        OutOfMemoryError,
        RequestError,
        ShapeError,
        UnsupportedModelError,
        VkPrefillError,
    )
    from vkprefill.generation.generate import GenerationPart, GenerationResult, generate, stream_generate
    from vkprefill.generation.sampling import SamplingConfig
    from vkprefill.generation.session import Session
    from vkprefill.specprefill.pipeline import SpecPrefill
    from vkprefill.specprefill.settings import SpecPrefillConfig

__all__ = [
    "ActivationCache",
    "AttentionCapture",
    "Cache",
    "ContextLengthError",
    "DeviceError",
    "Edit",
    "GGUFError",
    "GenerationPart",
    "GenerationResult",
    "Model",
    "OutOfMemoryError",
    "RequestError",
    "SamplingConfig",
    "Session",
    "ShapeError",
    "Snapshot",
    "SpecDecodeConfig",
    "SpecPrefill",
    "SpecPrefillConfig",
    "Steer",
    "UnsupportedModelError",
    "VkPrefillError",
    "generate",
    "load",
    "stream_generate",
]

_BUNDLED = os.path.join(os.path.dirname(__file__), "_bundled")  # kp, in wheels that bring it along
if os.path.isdir(_BUNDLED) and _BUNDLED not in sys.path:
    sys.path.insert(0, _BUNDLED)  # before one that somebody built otherwise: the native modules fit this one

_PLACES = {
    "drafting.settings": ("SpecDecodeConfig",),
    "engine.cache": ("Cache", "Snapshot"),
    "engine.capture": ("AttentionCapture",),
    "engine.microscope.activations": ("ActivationCache",),
    "engine.microscope.edits": ("Edit",),
    "engine.microscope.steering": ("Steer",),
    "engine.model": ("Model", "load"),
    "errors": tuple(name for name in __all__ if name.endswith("Error")),
    "generation.generate": ("GenerationPart", "GenerationResult", "generate", "stream_generate"),
    "generation.sampling": ("SamplingConfig",),
    "generation.session": ("Session",),
    "specprefill.pipeline": ("SpecPrefill",),
    "specprefill.settings": ("SpecPrefillConfig",),
}
_PLACE_OF = {name: place for place, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _PLACE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_PLACE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
