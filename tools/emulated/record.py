"""benchmarks/emu780m.json: what passed on the emulated device, by chip, and with which shaders.

A chip's entry: date, Mesa version, processor, seconds on the clock; for each test file its tests passed, failed and
left out, over all ways in which it ran; what the emulator refused; the hash of each shader's source at that time, with
what it includes.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from tools.shader_sources import SHADERS, source_digest

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "benchmarks" / "emu780m.json"
CHIP = "gfx1103"  # the one whose entry must be current
COMMAND = "make test-780m"
CHIPS = ROOT / "tools" / "emu780m" / "device" / "chips.cpp"


def chips() -> list[str]:
    """Names of those that the emulator knows."""
    return re.findall(r'\.target = "(\w+)"', CHIPS.read_text())


def shader_hashes(folder: Path = SHADERS) -> dict[str, str]:
    """By name of the shader; comments do not count."""
    return {path.stem: source_digest(path, folder) for path in sorted(folder.rglob("*.comp"))}


def read(path: Path = RECORD) -> dict[str, dict]:
    """Entries by chip."""
    return json.loads(path.read_text()) if path.exists() else {}


def store(chip: str, entry: dict, path: Path = RECORD) -> None:
    entries = read(path) | {chip: entry}
    path.write_text(json.dumps(dict(sorted(entries.items())), indent=1) + "\n")


def complaints(path: Path = RECORD, folder: Path = SHADERS) -> list[str]:
    """What of the shaders has not run on the emulated 780M as it is now, or failed there."""
    entry = read(path).get(CHIP)
    if entry is None:
        return [f"{path.name}: has no run on {CHIP}; run: {COMMAND}"]
    found = []
    now, then = shader_hashes(folder), entry["shaders"]
    if changed := [name for name in now if then.get(name) != now[name]]:
        found.append(f"{path.name}: not run there as they are now: {', '.join(changed)}; run: {COMMAND}")
    if failed := {file: counts["failed"] for file, counts in entry["files"].items() if counts["failed"]}:
        names = ", ".join(f"{file} ({number})" for file, number in failed.items())
        found.append(f"{path.name}: tests failed on {entry['date']}: {names}")
    return found


def main() -> int:
    """python -m tools.emulated.record (part of make lint): whether the record is that of the shaders as they are."""
    found = complaints()
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
