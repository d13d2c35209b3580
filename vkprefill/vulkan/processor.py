"""Which processor this is: what figures measured on a CPU device depend on."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

VECTOR_UNITS = {"avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX", "asimd": "NEON"}  # the widest first


@dataclass(frozen=True)
class Processor:
    """threads: that this process may use; vectors: the widest vector unit, empty where it is not known."""

    name: str
    threads: int
    vectors: str

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.name, f"{self.threads} threads", self.vectors)))


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> Processor:
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    fields = dict(reversed([tuple(map(str.strip, line.split(":", 1))) for line in lines if ":" in line]))
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return Processor(
        fields.get("model name") or platform.processor() or platform.machine(),
        len(os.sched_getaffinity(0)),
        next((unit for flag, unit in VECTOR_UNITS.items() if flag in flags), ""),
    )
