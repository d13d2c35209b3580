"""The subcommands, exit codes (0, 1 error, 2 usage, 130 interrupted), one line for each error."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from importlib import import_module

from vkprefill import log_lines
from vkprefill.cli.common import notice
from vkprefill.cli.flag_names import named_as_asked
from vkprefill.cli.interrupt import INTERRUPTED
from vkprefill.cli.model_names import find_models
from vkprefill.cli.output_file import check_apart
from vkprefill.cli.parser import Parser, Version
from vkprefill.cli.variables import named_by_variable, take_variables, unknown_variables
from vkprefill.display import one_line
from vkprefill.engine.sizes import check_sizes
from vkprefill.errors import VkPrefillError

SUBCOMMANDS = (
    "generate",
    "chat",
    "explain",
    "capture",
    "record",
    "eval",
    "bench",
    "serve",
    "inspect",
    "models",
    "devices",
    "doctor",
    "completion",
)
WITH_VARIABLES = ("serve",)  # for each of their options


def build_parser(argv: list[str]) -> Parser:
    """The parser for these arguments. Only the subcommand that they name is imported, which takes its time; completion
    is of all.
    """
    parser = Parser(
        prog="vkprefill",
        description="Run Qwen3.5 GGUF models on any Vulkan GPU.",
        epilog="vkprefill COMMAND --help shows the options of one. To begin with: vkprefill chat -hf USER/REPO",
    )
    parser.add_argument("--version", action=Version)
    subcommands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in argv[:1] if argv and argv[0] in SUBCOMMANDS[:-1] else SUBCOMMANDS:
        import_module(f"vkprefill.cli.{name}").register(subcommands)
    for subparser in subcommands.choices.values():
        subparser.add_argument("-v", "--verbose", action="store_true", help="say more on stderr")
    return parser


def run(parser: Parser, argv: list[str]) -> int:
    """Run the command line; returns the exit code."""
    args, variables = argparse.Namespace(), {}
    try:
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="replace")  # of characters that the terminal's encoding lacks
        for chosen in (parser.subcommands()[name] for name in argv[:1] if name in WITH_VARIABLES):
            variables = take_variables(chosen, os.environ)
        parser.parse_args(argv, args)
        log_lines.set_up(logging.INFO if args.verbose else logging.WARNING, getattr(args, "log_format", log_lines.TEXT))
        if sys.stdout is None:
            notice("Error: stdout: it is closed")
            return 1
        if args.command in WITH_VARIABLES:
            for line in unknown_variables(parser.subcommands()[args.command], os.environ):
                notice(line)
        if "ctx_size" in args:
            check_sizes(args.ctx_size, args.batch_size, ("-c", "-b"))
        if "hf_repo" in args:
            find_models(args)
        check_apart(args)
        code = args.run(args)
        sys.stdout.flush()
        return code
    except VkPrefillError as error:
        text = named_by_variable(named_as_asked(args, error), variables, args)
        notice(f"Error: {one_line(text)}")
        return 1
    except KeyboardInterrupt:
        notice("interrupted")
        return INTERRUPTED
    except OSError as error:
        if error.filename is not None:
            raise
        # What is still buffered goes nowhere, without a second error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):  # the reader of stdout has left: no news to it
            notice(f"Error: stdout: cannot be written: {error.strerror}")
        return 1
