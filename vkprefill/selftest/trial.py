"""One check: buffers with known numbers, programs over them, and what came out beside what numpy says."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from gguf import GGMLQuantizationType

from vkprefill.engine.halves import HalfRows
from vkprefill.engine.sizes import ROW_TILE
from vkprefill.engine.step import STEP_WORDS, StepWord
from vkprefill.engine.weights import Matrix, MatrixPart
from vkprefill.gguf.quants import layout_of, pack_part
from vkprefill.rounding import round_up
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.program import Program


@dataclass(frozen=True)
class Limit:
    """What an output may be off at most, in parts of the root mean square of what was wanted, and why."""

    error: float
    reason: str


EXACT = Limit(0.0, "nothing is rounded")
FUNCTIONS = Limit(1e-5, "float32 functions of single numbers, sums of a row")
SUMS = Limit(1e-4, "float32 sums in another order")
PROBABILITIES = Limit(3e-3, "probabilities rounded to halves, of 11 bits")
HALVES = Limit(2**-11 + 1e-5, "float32 functions rounded to halves, of 11 bits")


@dataclass(frozen=True)
class Finding:
    """How well kernels that ran together did: error and limit as in Limit, error infinite where an output is not
    finite; where: the worst place of the outputs, or why they could not run (then error is infinite too).
    """

    kernels: tuple[str, ...]
    error: float
    limit: float
    reason: str
    where: str

    @property
    def ok(self) -> bool:
        return self.error <= self.limit


@dataclass(frozen=True)
class Check:
    """name: what is checked, in words; run: does it on a device, telling what it found."""

    name: str
    run: Callable[[Trial], None]


class Trial:
    """The work of one check on a device. `with` gives its buffers back.

    findings: one for each comparison; recorded: the kernels of all programs so far, those too that never ran.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.rng = np.random.default_rng(2026)
        self.findings: list[Finding] = []
        self._programs: list[Program] = []
        self._buffers: list[Buffer] = []

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *error: object) -> None:
        self._programs.clear()
        for buffer in self._buffers:
            buffer.free()

    @property
    def recorded(self) -> tuple[str, ...]:
        return tuple(sorted({shader for program in self._programs for shader in program.shaders}))

    def program(self, num_tokens: int, num_rows: int | None = None, **words: int) -> Program:
        """For num_tokens of num_rows rows; words: of the step buffer, named as in StepWord."""
        step = np.zeros(STEP_WORDS, np.uint32)
        for name, value in {"NUM_TOKENS": num_tokens, **words}.items():
            step[StepWord[name]] = value
        buffer = self.device.host_array("step", step, kind="self-test")
        self._buffers.append(buffer)
        program = self.device.program("self-test", step=buffer, num_rows=num_rows or num_tokens)
        self._programs.append(program)
        return program

    def normal(self, *shape: int) -> np.ndarray:
        """Random numbers that are float32, as float64."""
        return self.rng.standard_normal(shape).astype(np.float32).astype(np.float64)

    def put(self, values: np.ndarray) -> Buffer:
        """A buffer with these numbers; those of float64 become float32."""
        values = np.ascontiguousarray(values, np.float32 if values.dtype == np.float64 else values.dtype)
        buffer = self._buffer(values.shape, values.dtype)
        if buffer.visible:
            buffer.view()[...] = values
        else:
            self.device.upload(buffer, [values])
        return buffer

    def rows(self, values: np.ndarray) -> Buffer:
        """As put, with rows that are NaN up to a whole tile, which kernels may read."""
        spare = -len(values) % ROW_TILE
        return self.put(np.concatenate([values, np.full((spare, *values.shape[1:]), np.nan)]))

    def output(self, *shape: int) -> Buffer:
        """A buffer full of NaN: what no kernel writes shows."""
        return self.put(np.full(shape, np.nan, np.float32))

    def words(self, *shape: int) -> Buffer:
        """A buffer of uint32 zeros."""
        return self.put(np.zeros(shape, np.uint32))

    def matrix(self, data: np.ndarray, kind: GGMLQuantizationType, columns: int) -> Matrix:
        """Blocks [rows, row bytes] of `columns` weights, packed as the kernels read them."""
        part = MatrixPart(0, len(data), self.put(pack_part(data, kind)))
        return Matrix("self-test", layout_of(kind).name, len(data), columns, (part,))

    def compare(self, program: Program, got: Buffer | np.ndarray, wanted: np.ndarray, limit: Limit) -> None:
        """Note how far what the program's kernels made is from `wanted`: as many rows of the buffer are looked at."""
        values = got.read()[: len(wanted)] if isinstance(got, Buffer) else got
        error, where = difference(values.reshape(wanted.shape), wanted)
        self.findings.append(Finding(tuple(sorted(program.shaders)), error, limit.error, limit.reason, where))

    def halves(self, num_rows: int, width: int) -> HalfRows:
        """Room for a kernel's rows of halves."""
        return HalfRows(self.words(round_up(num_rows, ROW_TILE), width // 2), self.output(num_rows))

    def compare_halves(self, program: Program, got: HalfRows, wanted: np.ndarray) -> None:
        """As compare, for rows [T, width] whose numbers differ in size: each is judged by itself."""
        halves = got.words.read()[: len(wanted)].view(np.float16).astype(np.float64)
        found = halves * got.factors.read()[:, None]
        self.compare(program, found / np.abs(wanted), np.sign(wanted), HALVES)

    def _buffer(self, shape: tuple[int, ...], dtype: np.dtype) -> Buffer:
        buffer = self.device.buffer("self-test", shape, dtype, kind="self-test", filled_by_cpu=True)
        self._buffers.append(buffer)
        return buffer


def difference(got: np.ndarray, wanted: np.ndarray) -> tuple[float, str]:
    """(the largest difference, in parts of the root mean square of wanted; the place in words)."""
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    bad = np.argwhere(~np.isfinite(got))
    if len(bad):
        at = tuple(int(i) for i in bad[0])
        return math.inf, f"{len(bad)} of {got.size} are not finite, first {list(at)}: {got[at]}"
    off = np.abs(got - wanted)
    at = tuple(int(i) for i in np.unravel_index(int(off.argmax()), off.shape))
    rms = float(np.sqrt(np.mean(np.square(wanted)))) or 1.0
    return float(off[at]) / rms, f"worst at {list(at)}: found {got[at]:.7g}, wanted {wanted[at]:.7g}"
