"""vkprefill devices: the Vulkan devices there are."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from vkprefill.engine.cpu_loads import profile_so_far
from vkprefill.vulkan.companion import abilities
from vkprefill.vulkan.probe import DeviceInfo, memory_of, probe


def register(subcommands: argparse._SubParsersAction) -> None:
    parser = subcommands.add_parser(
        "devices", help="list the Vulkan devices", description="List the Vulkan devices of this machine."
    )
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    devices = probe()
    if args.json:
        print(json.dumps([as_json(d) for d in devices]))
        return 0
    for d in devices:
        print(f"{d.index}: {d.name}")
        print(f"   type {d.type}, driver {d.driver}, Vulkan {d.api_version}, profile {profile_so_far(d).name}")
        print(f"   memory {memory_of(d)}; subgroup size {d.subgroup_size}")
        print(
            f"   limits: buffer {d.max_buffer_bytes / 2**20:,.0f} MiB, "
            f"workgroup {d.max_workgroup_invocations} invocations, "
            f"shared memory {d.max_shared_bytes / 1024:.0f} KiB"
        )
        opened = abilities(d.index)
        print(f"   {opened}")
        if opened.matrices:
            sizes = ", ".join("x".join(map(str, size)) for size in opened.matrices)
            print(f"   cooperative matrices of {sizes} (not used)")
        if d.missing:
            print(f"   cannot be used: lacks {', '.join(d.missing)}")
    return 0


def as_json(device: DeviceInfo) -> dict[str, object]:
    opened = abilities(device.index)
    return {
        **asdict(device),
        "profile": profile_so_far(device).name,
        "memory": memory_of(device),
        "companion": opened.absent is None,
        "companion_absent": opened.absent,
        "features": sorted(opened.features),
        "timestamps": opened.timestamps,
        "cooperative_matrices": opened.matrices,
    }
