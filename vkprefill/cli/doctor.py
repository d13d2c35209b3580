"""vkprefill doctor: what a report of a fault should hold, and whether every kernel computes what it should here."""

from __future__ import annotations

import argparse
import json

from rich.console import Console

from vkprefill.cli.common import progress_bar
from vkprefill.selftest.report import as_json, as_text
from vkprefill.selftest.run import examine

DESCRIPTION = """Say what machine, driver and device this is, what of it is used and why something is not, and run every
kernel that the device can run on small inputs, compared with numpy, and the built-in pair, whose answer is known: half
a minute, a minute or two where the driver has not compiled them before. One block of text on stdout, to be pasted into
a report; it has no names of folders or people. The exit code is 1 where something differs or cannot run, or no device
can be used: then the block says which drivers there are, and what is wrong with them. All runs in a process of its own,
so that a driver that crashes is reported."""


def register(subcommands: argparse._SubParsersAction) -> None:
    parser = subcommands.add_parser("doctor", help="test every kernel on a device", description=DESCRIPTION)
    parser.add_argument(
        "--device", metavar="DEVICE", help="index or part of the name of a Vulkan device (default: the best there is)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    with progress_bar(Console(stderr=True)) as bar:
        task = bar.add_task("asking the driver", total=None)

        def report(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, description=name)

        examined = examine(args.device, report)
    print(json.dumps(as_json(examined)) if args.json else as_text(examined))
    return 0 if examined.well else 1
