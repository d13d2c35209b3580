"""The options that time kernels on the device: --profile and --trace."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from vkprefill.benchmark.timeline import profile_text, recorded, write_trace
from vkprefill.cli.common import notice
from vkprefill.cli.output_file import OutputFile
from vkprefill.engine.model import Model
from vkprefill.errors import RequestError
from vkprefill.vulkan.companion import abilities
from vkprefill.vulkan.probe import DeviceInfo, choose
from vkprefill.vulkan.timing import Run

TRACE_HELP = "write when each dispatch ran on the device, as JSON for chrome://tracing or ui.perfetto.dev"


def add_profile_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("times on the device")
    group.add_argument(
        "--profile", action="store_true", help="afterwards, how long each kernel took on the device, on stderr"
    )
    group.add_argument("--trace", metavar="FILE", help=TRACE_HELP)


def check_timed(args: argparse.Namespace) -> None:
    """Raises RequestError where an option asks for times that the device cannot give."""
    if not args.profile and args.trace is None:
        return
    info = choose(args.device)
    if why := abilities(info.index).untimed:
        option = "--profile" if args.profile else "--trace"
        raise RequestError(f"{option}: kernels cannot be timed on {info.name}: {why}")


def trace_file(args: argparse.Namespace) -> AbstractContextManager[OutputFile | None]:
    """The file of --trace, tried before the work."""
    return nullcontext() if args.trace is None else OutputFile(args.trace)


@contextmanager
def timed(args: argparse.Namespace, model: Model, draft: Model | None) -> Iterator[list[Run]]:
    """The runs of what the models do inside; none where no option asks for them."""
    if not args.profile and args.trace is None:
        yield []
        return
    with recorded(model, draft) as recording:
        yield recording.runs


def report_times(args: argparse.Namespace, runs: list[Run], info: DeviceInfo, trace: OutputFile | None) -> None:
    """As the options ask: the table on stderr, the trace into its file."""
    if args.profile:
        notice(profile_text(runs))
    if trace is not None:
        trace.write(lambda file: write_trace(file, runs, info))
