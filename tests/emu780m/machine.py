"""Lines of RDNA3 instructions run on the interpreter of the emulated GPU: registers and memory in and out."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "tools" / "emu780m"
BUILD = ROOT / "build" / "emu780m"
VECTORS, SCALARS = 256, 128
VCC, M0, EXEC = 106, 125, 126
POISON = 0x7FA5A5A5  # in registers that nothing was written to
ADDRESS = 0xFFFF900012340000  # of the test's memory: one whose upper bits are the sign of 48
NO_DENORMALS, DENORMALS = 0xC0, 0xF0  # FLOAT_MODE: floats' denormals count as 0, or not; halves' always stay
KINDS = ("valu", "pair", "salu", "smem", "vmem", "lds", "barrier", "nops", "other")
COUNTS = tuple(re.findall(r"uint64_t (\w+) = 0;", (SOURCES / "rdna3.h").read_text()))  # of Stats


class InterpreterError(Exception):
    """The interpreter's line about what it refused."""


class _LinesRun(ctypes.Structure):  # LinesRun of run_lines.cpp
    _fields_ = [
        ("lines", ctypes.c_char_p),
        ("waves", ctypes.c_uint32),
        ("float_mode", ctypes.c_uint32),
        ("vectors", ctypes.c_void_p),
        ("scalars", ctypes.c_void_p),
        ("scc", ctypes.c_void_p),
        ("lds", ctypes.c_void_p),
        ("lds_size", ctypes.c_uint64),
        ("memory", ctypes.c_void_p),
        ("memory_address", ctypes.c_uint64),
        ("memory_size", ctypes.c_uint64),
        ("order", ctypes.c_char_p),
        ("count", ctypes.c_uint64 * len(KINDS)),
        ("issue", ctypes.c_uint64 * len(KINDS)),
        ("counts", ctypes.c_uint64 * len(COUNTS)),
        ("error", ctypes.c_char * 512),
    ]


def build() -> Path:
    """The interpreter as a shared library, compiled where its sources, the compiler or the processor are new."""
    compiler = os.environ.get("CXX", "c++")
    digest = hashlib.sha256(subprocess.run([compiler, "--version"], capture_output=True, check=True).stdout)
    digest.update(next((line for line in open("/proc/cpuinfo", "rb") if line.startswith(b"flags")), b""))
    for path in [SOURCES / "build.sh", SOURCES / "rdna3.h", *sorted((SOURCES / "rdna3").iterdir())]:
        digest.update(path.name.encode() + path.read_bytes())
    library = BUILD / f"interpreter-{digest.hexdigest()[:16]}.so"
    if not library.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        for old in BUILD.glob("interpreter-*.so"):
            old.unlink()
        partial = library.with_suffix(f".{os.getpid()}")
        subprocess.run([SOURCES / "build.sh", "--interpreter", partial], check=True)
        partial.rename(library)
    return library


@dataclass(frozen=True)
class Result:
    """Registers, LDS and memory after the last line; vectors [wave, register, lane], scalars [wave, register]."""

    vectors: np.ndarray
    scalars: np.ndarray
    scc: np.ndarray
    lds: np.ndarray
    memory: np.ndarray
    issued: dict[str, int]
    counts: dict[str, int]

    def v(self, register: int, dtype=np.uint32) -> np.ndarray:
        """A vector register of the first wave."""
        return self.vectors[0, register].view(dtype)

    def s(self, register: int) -> int:
        return int(self.scalars[0, register])

    def s64(self, register: int) -> int:
        return self.s(register) | self.s(register + 1) << 32

    def mask(self, register: int, lanes: int) -> int:
        """A lane mask of the first wave."""
        return self.s64(register) if lanes == 64 else self.s(register)


class Machine:
    """Waves of 32 or 64 lanes."""

    def __init__(self, library: ctypes.CDLL, lanes: int):
        self.lanes = lanes
        self.all = (1 << lanes) - 1
        self._run = getattr(library, f"rdna3_run_lines_{lanes}")

    def run(
        self,
        lines: str,
        v: dict | None = None,
        s: dict | None = None,
        *,
        waves: int = 1,
        on: int | None = None,
        scc: bool = False,
        lds: np.ndarray | None = None,
        memory: np.ndarray | None = None,
        mode: int = NO_DENORMALS,
        order: int | None = None,
    ) -> Result:
        """Runs the lines (and s_endpgm) on one workgroup.

        v: register -> value, [lane] or [wave, lane], of 4 bytes; s: register -> word; on: EXEC, all lanes if None.
        Raises InterpreterError.
        """
        vectors = np.full((waves, VECTORS, self.lanes), POISON, np.uint32)
        for register, value in (v or {}).items():
            vectors[:, register] = np.asarray(value).view(np.uint32)
        scalars = np.full((waves, SCALARS), POISON, np.uint32)
        on = self.all if on is None else on
        for register, value in {EXEC: on & 0xFFFFFFFF, EXEC + 1: on >> 32, 124: 0, **(s or {})}.items():
            scalars[:, register] = np.uint32(value & 0xFFFFFFFF)
        carry = np.full(waves, scc, np.uint8)
        lds = np.zeros(0, np.uint8) if lds is None else np.array(lds).view(np.uint8)
        memory = np.zeros(0, np.uint8) if memory is None else np.array(memory).view(np.uint8)
        text = "".join(line.strip() + "\n" for line in [*lines.strip().splitlines(), "s_endpgm"])
        call = _LinesRun(
            lines=text.encode(),
            waves=waves,
            float_mode=mode,
            vectors=vectors.ctypes.data,
            scalars=scalars.ctypes.data,
            scc=carry.ctypes.data,
            lds=lds.ctypes.data,
            lds_size=lds.size,
            memory=memory.ctypes.data,
            memory_address=ADDRESS,
            memory_size=memory.size,
            order=None if order is None else str(order).encode(),
        )
        if self._run(ctypes.byref(call)):
            raise InterpreterError(call.error.decode())
        issued = dict(zip(KINDS, call.count, strict=True))
        counts = dict(zip(COUNTS, call.counts, strict=True))
        return Result(vectors, scalars, carry, lds, memory, issued, counts)

    def each(self, line: str, *operands: np.ndarray, mode: int = NO_DENORMALS, old: int = 0) -> np.ndarray:
        """Runs a line that computes v0 out of v1, v2, v3 for all elements of the operands (4 bytes each), however many.

        `old` is what v0 holds before. Returns v0 as words.
        """
        size = operands[0].size
        waves = -(-size // self.lanes)
        v = {0: np.full((waves, self.lanes), old, np.uint32)}
        for register, operand in enumerate(operands, 1):
            words = np.zeros(waves * self.lanes, np.uint32)
            words[:size] = np.ascontiguousarray(operand).view(np.uint32)
            v[register] = words.reshape(waves, self.lanes)
        return self.run(line, v, waves=waves, mode=mode).vectors[:, 0].reshape(-1)[:size].copy()


def grid(values: np.ndarray, operands: int) -> list[np.ndarray]:
    """All combinations of the values, one array an operand."""
    return [np.ascontiguousarray(axis.reshape(-1)) for axis in np.meshgrid(*[values] * operands, indexing="ij")]
