"""The entry of the command line: nothing is imported before Ctrl-C is answered in one line."""

from __future__ import annotations

import sys

from vkprefill.cli.interrupt import leaving_at_once


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    with leaving_at_once():
        from vkprefill.cli.commands import build_parser, run

        parser = build_parser(argv)
    return run(parser, argv)
