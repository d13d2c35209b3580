"""Qwen3.5 GGUF models on any Vulkan GPU: every layer a compute shader, dispatched through Kompute."""

from vkprefill.engine.cache import Cache, Snapshot
from vkprefill.engine.capture import AttentionCapture
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
    "AttentionCapture",
    "Cache",
    "ContextLengthError",
    "DeviceError",
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
    "SpecPrefill",
    "SpecPrefillConfig",
    "UnsupportedModelError",
    "VkPrefillError",
    "generate",
    "load",
    "stream_generate",
]
