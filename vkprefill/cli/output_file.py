"""A file that a subcommand writes: tried before the work, and whole or not there at all after it."""

from __future__ import annotations

import argparse
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from vkprefill.errors import RequestError

READ, WRITTEN = (
    ("model", "model_draft", "file", "haystack"),
    ("json", "trace", "output", "plot", "html", "report", "resume"),
)


def check_apart(args: argparse.Namespace) -> None:
    """Raises RequestError for a file to be written that is also one of those read, or to be written twice."""
    option_of: dict[str, str] = {}
    for option in (*READ, *WRITTEN):
        given = getattr(args, option, None)
        for path in given if isinstance(given, list) else [given]:
            if not isinstance(path, str) or path == "-" or "\0" in path:
                continue
            name, place = f"--{option.replace('_', '-')}", os.path.realpath(path)
            if option in WRITTEN and place in option_of:
                raise RequestError(f"{name}: found {path}, wanted another file than that of {option_of[place]}")
            option_of[place] = name


class OutputFile:
    """A context: entering it creates a temporary file beside the path, `write` fills it and moves it into place.

    Leaving without `write`, by an error or Ctrl-C, removes it; a file that was there before stays as it was.
    """

    def __init__(self, path: str | Path) -> None:
        self._given = str(path)
        self.path = Path(path)
        self._target = self._temporary = self.path

    def __enter__(self) -> OutputFile:
        """Raises RequestError for a path that cannot be written."""
        if self._given in ("", "-"):
            hint = ", ./- would" if self._given else ""
            raise RequestError(f"{self._given!r}: cannot be written: it names no file{hint}")
        try:
            self._target = self.path.resolve()  # a symbolic link stays one
            if os.path.exists(self.path):  # the target of /dev/stdout may be no path
                self._check_existing()
            self._temporary = self._target.parent / f".vkprefill-{secrets.token_hex(8)}.tmp"
            os.close(os.open(self._temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a NUL in the path
            raise self._error(error) from None
        return self

    def write(self, fill: Callable[[BinaryIO], None]) -> None:
        """fill(file) writes all of it. Raises RequestError when the disk is full or the like."""
        try:
            with open(self._temporary, "wb") as file:
                fill(file)
            os.replace(self._temporary, self._target)
        except OSError as error:
            raise self._error(error) from None

    def __exit__(self, *exception: object) -> None:
        self._temporary.unlink(missing_ok=True)

    def _check_existing(self) -> None:
        if not stat.S_ISREG(self.path.stat().st_mode):
            raise RequestError(f"{self.path}: cannot be written: it is not a regular file")
        if not os.access(self.path, os.W_OK):
            raise RequestError(f"{self.path}: cannot be written: it is write-protected")

    def _error(self, error: Exception) -> RequestError:
        return RequestError(f"{self.path}: cannot be written: {getattr(error, 'strerror', None) or error}")
