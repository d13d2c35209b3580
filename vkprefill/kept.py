"""Measurements that are kept: JSON in the user's cache folder, a file for each kind.

A file that cannot be read or written only costs the measurement again. One that was damaged is set aside.
"""

from __future__ import annotations

import json
import logging
import math
import os
import stat
import tempfile
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Generic, TypeVar

log = logging.getLogger("vkprefill")

Measurement = TypeVar("Measurement")  # a dataclass of floats above 0


class Kept(Generic[Measurement]):
    """Measurements of one kind by key."""

    def __init__(self, name: str, kind: type[Measurement]) -> None:
        """name: of the file."""
        self.name, self.kind = name, kind

    def file(self) -> Path | None:
        """In XDG_CACHE_HOME, else, and where that is relative (so its specification), in ~/.cache; None for a user
        without a home folder.
        """
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        try:
            base = base if base.is_absolute() else Path.home() / ".cache"
        except RuntimeError:
            return None
        return base / "vkprefill" / self.name

    def writable_file(self) -> Path | None:
        """The file that a measurement will be kept in; None where it cannot be written."""
        path = self.file()
        if path is None:
            return None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path.parent):
                return path
        except OSError:
            return None

    def load(self) -> dict[str, Measurement]:
        """All that is kept; nothing where the file is not there or not what was written."""
        path = self.file()
        if path is None:
            return {}
        try:
            if not stat.S_ISREG(path.stat().st_mode):  # opening a FIFO would block
                _warn_once(f"{path.stem}: {path} is not usable: it is not a regular file")
                return {}
            return {key: self._read(entry) for key, entry in json.loads(path.read_text("utf-8")).items()}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            _warn_once(f"{path.stem}: {path} is not usable: it cannot be read: {_in_words(error)}")
        except (ArithmeticError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            self._set_aside(path)
        return {}

    def store(self, key: str, measured: Measurement, most: int | None = None) -> None:
        """Add an entry; the file is replaced as a whole, so a crash leaves the old one. most: keep so many entries,
        those stored last.
        """
        path = self.file()
        if path is None:
            return _warn_once(f"{Path(self.name).stem}: no home folder to keep speeds in; set XDG_CACHE_HOME")
        entries = {k: asdict(v) for k, v in self.load().items() if k != key} | {key: asdict(measured)}
        entries = dict([*entries.items()][-most if most else 0 :])
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                file = Path(folder) / path.name
                file.write_text(json.dumps(entries, indent=1))
                os.replace(file, path)
        except OSError as error:
            _warn_once(f"{path.stem}: {path} cannot be written: {_in_words(error)}")

    def _set_aside(self, path: Path) -> None:
        """So that it is told of in one run only, whenever there will be something to keep."""
        aside = path.with_name(f"{path.name}.damaged")
        try:
            os.replace(path, aside)
            done = f"moved to {aside.name}"
        except OSError as error:
            done = f"cannot be moved: {_in_words(error)}"
        _warn_once(f"{path.stem}: {path} is not usable: it is damaged; {done}")

    def _read(self, entry: dict[str, object]) -> Measurement:
        return self.kind(**{field.name: _above_zero(entry[field.name]) for field in fields(self.kind)})


def _in_words(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def _above_zero(value: object) -> float:
    number = float(value)
    if not 0 < number < math.inf:
        raise ValueError(f"a measured value of {number}")
    return number


@cache
def _warn_once(message: str) -> None:
    log.warning("%s", message)
