"""Qwen3.5 GGUF models on any Vulkan GPU: every layer a compute shader, dispatched through Kompute."""

from vkprefill.cache import Cache, Snapshot
from vkprefill.capture import AttentionCapture
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
from vkprefill.generate import GenerationPart, GenerationResult, generate, stream_generate
from vkprefill.model import Model, load
from vkprefill.sampling import SamplingConfig
from vkprefill.session import Session
from vkprefill.specprefill import SpecPrefill
from vkprefill.specprefill_config import SpecPrefillConfig

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
