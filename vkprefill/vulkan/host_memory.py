"""How much of the machine's memory is free for this process."""

from __future__ import annotations

import os
from pathlib import Path

from vkprefill.errors import OutOfMemoryError

RESERVE_BYTES = 256 << 20  # that arrays of results leave free
CONTROL_GROUPS = (  # as a container sees its own: limit, use, and what of the use the kernel would give up
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
)


def free_ram_bytes(root: Path = Path("/")) -> int:
    """MemAvailable of the machine, or what is left to the control group this process is confined to, if that is less.
    Pages of files that a group has read count as its use, but make room for others: they are taken as free.
    """
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except OSError:  # a root without /proc: what nobody uses, which is less
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    groups = root / "sys/fs/cgroup"
    for limit, use, files in CONTROL_GROUPS:
        try:
            left = int((groups / limit).read_text()) - int((groups / use).read_text())
            statistics = dict(line.split() for line in (groups / use).with_name("memory.stat").read_text().splitlines())
            left += sum(int(statistics.get(name, 0)) for name in files)
        except (OSError, ValueError):  # no such control group, or its limit is "max"
            continue
        free = min(free, left)
    return free


def require_ram(num_bytes: int, what: str, fewer: str) -> None:
    """Raise OutOfMemoryError unless the machine has so much for arrays of results. fewer: what would need less."""
    free = free_ram_bytes() - RESERVE_BYTES
    if num_bytes > free:
        raise OutOfMemoryError(
            f"{what}: needs {num_bytes / 2**20:,.0f} MiB of the machine's memory, {max(0, free) / 2**20:,.0f} MiB are "
            f"free; take fewer {fewer}"
        )
