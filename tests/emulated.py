"""What the emulated GPU (make test-780m) tells of each dispatch beside its results: accesses out of bounds, rounding.

The emulator appends a line of JSON for each dispatch to the file that EMU_STATS names (tools/emu780m/statistics.cpp).
"""

from __future__ import annotations

import json
from pathlib import Path

from vkprefill.vulkan.device import Device

# The register FLOAT_MODE: all rounded to the nearest; subnormal halves kept, subnormal float32 flushed. RADV's default.
FLOAT_MODE = 0xC0


def is_emulated(device: Device) -> bool:
    return "(emulated)" in device.info.name


class Dispatches:
    """Those of this process and its children, as the emulator wrote them down. On other devices there are none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = path.stat().st_size if path.exists() else 0  # bytes

    def take(self) -> list[dict]:
        """All since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read)
            lines = file.read().rpartition(b"\n")[0]
        self._read += len(lines) + bool(lines)
        return [json.loads(line) for line in lines.splitlines()]


def faults(dispatches: list[dict]) -> list[str]:
    """What a GPU may answer otherwise than the emulator does, for each dispatch that has any, in words."""
    found = []
    for d in dispatches:
        what = f"dispatch {d['dispatch']}, grid {d['grid']} of {d['local']}"
        if d["outside"]:
            found.append(f"{what}: {d['outside']} accesses outside the buffers")
        if d["float_mode"] != FLOAT_MODE:
            found.append(f"{what}: FLOAT_MODE {d['float_mode']:#x}, wanted {FLOAT_MODE:#x}")
    return found
