"""vkprefill devices: the Vulkan devices there are."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from vkprefill.vulkan.probe import probe
from vkprefill.vulkan.profiles import profile_for


def register(subcommands: argparse._SubParsersAction) -> None:
    parser = subcommands.add_parser(
        "devices", help="list the Vulkan devices", description="List the Vulkan devices of this machine."
    )
    parser.add_argument("--json", action="store_true", help="print one JSON array")
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    devices = probe()
    if args.json:
        print(json.dumps([{**asdict(d), "profile": profile_for(d).name} for d in devices]))
        return 0
    for d in devices:
        print(f"{d.index}: {d.name}")
        print(f"   type {d.type}, driver {d.driver}, Vulkan {d.api_version}, profile {profile_for(d).name}")
        print(
            f"   memory {d.memory_bytes / 2**30:.1f} GiB on the device, "
            f"{d.host_memory_bytes / 2**30:.1f} GiB beside it; "
            f"subgroup size {d.subgroup_size}"
        )
        print(
            f"   limits: buffer {d.max_buffer_bytes / 2**20:,.0f} MiB, "
            f"workgroup {d.max_workgroup_invocations} invocations, "
            f"shared memory {d.max_shared_bytes / 1024:.0f} KiB"
        )
        if d.missing:
            print(f"   cannot be used: lacks {', '.join(d.missing)}")
    return 0
