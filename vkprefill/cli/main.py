"""The entry of the command line: nothing is imported before Ctrl-C is answered in one line."""

from __future__ import annotations

from vkprefill.cli.interrupt import leaving_at_once


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    with leaving_at_once():
        from vkprefill.cli.commands import run

    return run(argv)
