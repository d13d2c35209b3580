"""Which processor this is: what figures measured on a CPU device depend on."""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import dataclass
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
VECTOR_UNITS = {"avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX", "asimd": "NEON"}  # the widest first


@dataclass(frozen=True)
class Processor:
    """threads: that this process may use; vectors: the widest vector unit, empty where it is not known."""

    name: str
    threads: int
    vectors: str

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.name, f"{self.threads} threads", self.vectors)))


def processor(cpuinfo: Path = CPUINFO) -> Processor:
    told = (line.split(":", 1) for line in reversed(_lines(cpuinfo)) if ":" in line)
    fields = dict(tuple(map(str.strip, pair)) for pair in told)
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return Processor(
        fields.get("model name") or platform.processor() or platform.machine(),
        len(os.sched_getaffinity(0)),
        next((unit for flag, unit in VECTOR_UNITS.items() if flag in flags), ""),
    )


def processor_code(cpuinfo: Path = CPUINFO) -> str:
    """A word for the model and its instruction sets: drivers compile for these; a home folder may have several. Empty
    where they are not known.
    """
    told = sorted({line for line in _lines(cpuinfo) if line.startswith(("model name", "flags"))})
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:12] if told else ""


def _lines(cpuinfo: Path) -> list[str]:
    try:
        return cpuinfo.read_text().splitlines()
    except OSError:
        return []
