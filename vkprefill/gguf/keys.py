"""Typed reads of the metadata keys of an architecture."""

from __future__ import annotations

import math

import numpy as np

from vkprefill.display import printable
from vkprefill.errors import GGUFError, UnsupportedModelError
from vkprefill.gguf.file import GGUFFile
from vkprefill.gguf.purposes import purpose_of

ARCHITECTURE = "qwen35"
MIXTURE = "qwen35moe"
ARCHITECTURES = (ARCHITECTURE, MIXTURE)
_REQUIRED = object()


class Keys:
    """Typed reads of the architecture's keys. Errors name the file, the key, what was found and what was wanted."""

    def __init__(self, file: GGUFFile) -> None:
        self.label = file.label
        self.metadata = file.metadata
        self.path = file.path
        self.architecture = file.metadata.get("general.architecture")

    def full(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def has(self, key: str) -> bool:
        return self.full(key) in self.metadata

    def get(self, key: str, default: object = _REQUIRED) -> object:
        value = self.metadata.get(self.full(key), default)
        if value is _REQUIRED:
            raise GGUFError(f"{self.label}: {self.full(key)}: missing key")
        return value

    def error(self, key: str, value: object, wanted: str) -> GGUFError:
        if isinstance(value, np.ndarray):
            value = value.tolist() if value.size <= 8 else f"an array of {value.size}"
        return GGUFError(f"{self.label}: {self.full(key)}: found {printable(value)}, wanted {wanted}")

    def check_architecture(self) -> None:
        if purpose := purpose_of(self.metadata, self.path):
            raise UnsupportedModelError(f"{self.label}: {purpose}; wanted the model's own file")
        if self.architecture is None:
            raise GGUFError(f"{self.label}: general.architecture: missing key")
        if not isinstance(self.architecture, str) or self.architecture not in ARCHITECTURES:
            raise UnsupportedModelError(
                f"{self.label}: architecture {printable(self.architecture)} is not supported, wanted "
                f"{' or '.join(ARCHITECTURES)}"
            )

    def model_name(self) -> str:
        """general.name, or the file's name where there is none; one printable line."""
        name = self.metadata.get("general.name")
        return printable(name if isinstance(name, str) and name else self.path.stem, 80)

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """An integer of any GGUF integer type; required without a default."""
        value = self.get(key, _REQUIRED if default is None else default)
        if type(value) is not int or not low <= value <= high:
            raise self.error(key, value, f"an integer from {low} to {high}")
        return value

    def same_integer(self, key: str, low: int, high: int, block_count: int) -> int:
        """An integer, or an array with one for each block where all are equal (some converters write those)."""
        value = self.get(key)
        if isinstance(value, np.ndarray) and value.size == block_count and value.min() != value.max():
            raise UnsupportedModelError(
                f"{self.label}: {self.full(key)}: values that differ by layer are not supported"
            )
        return self.integers(key, low, high, block_count)[0]

    def integers(self, key: str, low: int, high: int, block_count: int, default: int | None = None) -> tuple[int, ...]:
        """One for each block: of an array, or an integer for all."""
        value = self.get(key, _REQUIRED if default is None else default)
        if not isinstance(value, np.ndarray):
            return (self.integer(key, low, high, default),) * block_count
        if value.dtype.kind not in "iu" or value.size != block_count:
            raise self.error(key, value, f"an integer, or {block_count} of them, one for each block")
        if not (low <= value.min() and value.max() <= high):
            raise self.error(key, value, f"integers from {low} to {high}")
        return tuple(int(n) for n in value)

    def positive(self, key: str, default: float | None = None) -> float:
        """A finite floating-point number above 0; required without a default."""
        value = self.get(key, _REQUIRED if default is None else default)
        if not isinstance(value, float) or not math.isfinite(value) or value <= 0:
            raise self.error(key, value, "a finite floating-point number above 0")
        return value
