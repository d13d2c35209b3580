"""Control vectors: directions that every run of a model adds to its residual stream, from llama.cpp's GGUF files."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral, Real
from os import PathLike

import numpy as np
from gguf import GGMLQuantizationType

from vkprefill.checks import MOST_INTEGER, check_number, in_range
from vkprefill.display import printable, quoted
from vkprefill.engine import kernels
from vkprefill.engine.kernels.points import ADD
from vkprefill.engine.points import KIND, Rows
from vkprefill.errors import GGUFError, RequestError
from vkprefill.gguf.config import ModelConfig
from vkprefill.gguf.file import open_gguf
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.program import Program

MOST_STRENGTH = float(np.finfo(np.float32).max)
FORM = re.compile(r"(?P<path>.+?):(?P<strength>[+-]?[\d.]+(?:e[+-]?\d+)?)(?::(?P<first>\d+)(?:-(?P<last>\d+))?)?")


@dataclass(frozen=True)
class Steer:
    """A file, how much of it is added, and to which layers (None: all that it has), the last one included."""

    path: str | PathLike
    strength: float = 1.0
    layers: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | PathLike):
            raise RequestError(f"steer: found {quoted(self.path)}, wanted the path of a file")
        check_number("steer: strength", self.strength, Real, -MOST_STRENGTH, MOST_STRENGTH)
        try:
            first, last = (0, 0) if self.layers is None else self.layers
        except (TypeError, ValueError):
            first = last = None
        if not in_range(first, Integral, 0, MOST_INTEGER) or not in_range(last, Integral, 0, MOST_INTEGER):
            raise RequestError(f"steer: layers: found {quoted(self.layers)}, wanted (first, last), from 0 on")
        if first > last:
            raise RequestError(f"steer: layers {first}-{last}: the first is after the last")

    @classmethod
    def parse(cls, text: str) -> Steer:
        """FILE:STRENGTH[:LAYERS], LAYERS one or FIRST-LAST. Raises RequestError."""
        found = FORM.fullmatch(text)
        try:
            strength = float(found["strength"]) if found else math.nan
        except ValueError:
            strength = math.nan
        if not math.isfinite(strength):
            raise RequestError(
                f"steer: found {quoted(text)}, wanted FILE:STRENGTH or FILE:STRENGTH:LAYERS (12, or 10-20)"
            )
        layers = None
        if found["first"]:
            layers = int(found["first"]), int(found["last"] or found["first"])
        return cls(found["path"], strength, layers)


def directions(steers: Steer | Iterable[Steer], config: ModelConfig) -> dict[int, np.ndarray]:
    """Layer -> float32 [D], the sum of all, to be added after the layer. Raises GGUFError for a file that is none of
    control vectors, RequestError for one that does not fit the model.
    """
    total: dict[int, np.ndarray] = {}
    if not isinstance(steers, Steer | Iterable):
        raise RequestError(f"steer: found {quoted(steers)}, wanted Steer")
    for steer in [steers] if isinstance(steers, Steer) else steers:
        if not isinstance(steer, Steer):
            raise RequestError(f"steer: found {type(steer).__name__}, wanted Steer")
        first, last = (0, config.num_hidden_layers - 1) if steer.layers is None else steer.layers
        if last >= config.num_hidden_layers:
            raise RequestError(f"steer: layer {last}, wanted 0 to {config.num_hidden_layers - 1}")
        for layer, vector in _read(steer.path, config).items():
            if first <= layer <= last:
                with np.errstate(over="ignore", invalid="ignore"):
                    total[layer] = total.get(layer, np.float32(0)) + np.float32(steer.strength) * vector
    for layer, vector in total.items():
        if not np.isfinite(vector).all():
            raise RequestError(f"steer: layer {layer}: strengths times directions are not finite float32")
    return total


def _read(path: str, config: ModelConfig) -> dict[int, np.ndarray]:
    """llama.cpp adds direction.N to what layer N gives."""
    file = open_gguf(path)
    found = {}
    for name, info in file.tensors.items():
        kind, _, number = name.partition(".")
        if kind != "direction" or not number.isdecimal():
            continue
        if info.type != GGMLQuantizationType.F32 or info.shape != (config.hidden_size,):
            raise RequestError(
                f"{file.label}: {printable(name)}: {info.type.name} of shape {list(info.shape)}, wanted F32 of "
                f"[{config.hidden_size}], a row of this model"
            )
        if not 1 <= int(number) < config.num_hidden_layers:
            raise RequestError(
                f"{file.label}: {printable(name)}: wanted layers 1 to {config.num_hidden_layers - 1} of this model"
            )
        found[int(number)] = file.dequantize(name)
        if not np.isfinite(found[int(number)]).all():
            raise GGUFError(f"{file.label}: {printable(name)}: not all of it is finite")
    if not found:
        raise GGUFError(f"{file.label}: no tensor is named direction.N, wanted a file of control vectors")
    return found


class Steering:
    """A watch of all of a model's programs. It adds to float32 rows; products of halves stay what they are."""

    full = False

    def __init__(self, device: Device, vectors: dict[int, np.ndarray], num_rows: int) -> None:
        """num_rows: of the largest program."""
        with device.freed_on_error():
            self._every = device.host_array("steered tokens", np.zeros(num_rows, np.uint32), kind=KIND)
            self._vectors: dict[str, Buffer] = {
                f"blocks.{layer}.hook_resid_post": device.host_array("steer", vector[None], kind=KIND)
                for layer, vector in vectors.items()
            }

    @property
    def num_bytes(self) -> int:
        return sum(buffer.num_bytes for buffer in (self._every, *self._vectors.values()))

    def wants(self, name: str) -> bool:
        return name in self._vectors

    def at(self, p: Program, name: str, rows: Rows) -> None:
        kernels.edit_rows(p, self._every.part("all", 0, (p.num_rows,)), self._vectors[name], rows, ADD)

    def close(self) -> None:
        """Closing twice does nothing."""
        for buffer in (self._every, *self._vectors.values()):
            buffer.free()
