"""Options that the benchmarks of single kernels share, and the device that they name."""

from __future__ import annotations

import argparse
import sys

from vkprefill.errors import VkPrefillError
from vkprefill.vulkan.device import Device


def parse(
    parser: argparse.ArgumentParser, argv: list[str] | None, *, repetitions: int
) -> tuple[argparse.Namespace, Device]:
    """The arguments, with -r, --device and --json beside the parser's own, and the device; ends where there is none."""
    parser.add_argument(
        "-r", "--repetitions", type=int, default=repetitions, metavar="N", help=f"(default: {repetitions})"
    )
    parser.add_argument("--device", default=None, help="index or part of the name of a Vulkan device")
    parser.add_argument("--json", metavar="FILE", help="write the record")
    args = parser.parse_args(argv)
    try:
        return args, Device.open(args.device)
    except VkPrefillError as error:
        sys.exit(f"Error: {error}")
