"""Options of subcommands whose work Ray may spread over devices and machines."""

from __future__ import annotations

import argparse

from vkprefill.distributed.places import Places
from vkprefill.distributed.pool import require_ray
from vkprefill.errors import RequestError


def add_ray_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("several devices or machines")
    group.add_argument(
        "--ray",
        action="store_true",
        help="spread the work by Ray (pip install 'vkprefill[ray]'), started on this machine for as long as it takes; "
        "results are those of one device",
    )
    group.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="by a Ray cluster in place of this machine: the address of its head, or auto; the model's file, and "
        "vkprefill, must be on every machine, in the same place",
    )
    group.add_argument("--actors", type=int, metavar="N", help="models loaded at a time (default: one a device)")
    group.add_argument(
        "--devices",
        metavar="DEVICE,...",
        help="as --device, of each machine, for Ray's first GPU, its second, and so on (default: here the one that is "
        "taken without Ray, in a cluster the GPUs that Vulkan lists)",
    )


def places_of(args: argparse.Namespace) -> Places | None:
    """None where the work is done here. Raises RequestError, also where Ray is not installed."""
    if not args.ray and args.ray_address is None:
        for flag, value in (("--actors", args.actors), ("--devices", args.devices)):
            if value is not None:
                raise RequestError(f"{flag}: wanted --ray or --ray-address beside it")
        return None
    if args.devices is not None and args.device is not None:
        raise RequestError("--devices: wanted without --device, which names one of them")
    devices = () if args.device is None else (args.device,)
    if args.devices is not None:
        devices = tuple(args.devices.split(","))
        if "" in devices:
            raise RequestError(f"--devices: found {args.devices!r}, wanted indices or parts of names")
    require_ray()
    return Places(args.ray_address, args.actors, devices)
