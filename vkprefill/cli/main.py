"""The command line: subcommands, exit codes (0, 1 error, 2 usage, 130 interrupted), one line for each error."""
from __future__ import annotations

import argparse
import logging
import os
import sys
from importlib.metadata import version

from vkprefill.cli import chat, devices, generate, inspect
from vkprefill.errors import VkPrefillError

SUBCOMMANDS = (generate, chat, inspect, devices)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="vkprefill", description="Run Qwen3.5 GGUF models on any Vulkan GPU.")
    parser.add_argument("--version", action="version", version=f"vkprefill {version('vkprefill')}")
    subcommands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in SUBCOMMANDS:
        module.register(subcommands)
    for subparser in subcommands.choices.values():
        subparser.add_argument("-v", "--verbose", action="store_true", help="say more on stderr")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    args = build_parser().parse_args(argv)
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.INFO if args.verbose else logging.WARNING)
    try:
        return args.run(args)
    except VkPrefillError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of stdout has left; what is still buffered goes nowhere, without a second error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
