"""The entry of the command line: nothing is imported before Ctrl-C, and memory that runs out, are answered in one
line.
"""

from __future__ import annotations

import sys

from vkprefill.cli.interrupt import leaving_at_once

NO_THREAD = "can't start new thread"  # Python's words where there is no memory for one


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        with leaving_at_once():
            from vkprefill.cli.commands import build_parser, run

            parser = build_parser(argv)
        return run(parser, argv)
    except MemoryError as error:
        what = str(error) or "the machine, or a limit on this process, has no more"
    except RuntimeError as error:
        if str(error) != NO_THREAD:
            raise
        what = NO_THREAD
    if sys.stderr is not None:
        print(f"Error: out of memory: {what}", file=sys.stderr)
    return 1
