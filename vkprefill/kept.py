"""Measurements that are kept: JSON in the user's cache folder, a file for each kind.

A file that cannot be read or written only costs the measurement again.
"""

from __future__ import annotations

import json
import logging
import math
import os
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
        """In XDG_CACHE_HOME, else in ~/.cache; None for a user without a home folder."""
        try:
            base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
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
            return {key: self._read(entry) for key, entry in json.loads(path.read_text()).items()}
        except FileNotFoundError:
            return {}
        except (OSError, ArithmeticError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            _warn_once(f"{path.stem}: {path} is not usable ({error}); measuring again")
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
            _warn_once(f"{path.stem}: {path} cannot be written ({error})")

    def _read(self, entry: dict[str, object]) -> Measurement:
        return self.kind(**{field.name: _above_zero(entry[field.name]) for field in fields(self.kind)})


def _above_zero(value: object) -> float:
    number = float(value)
    if not 0 < number < math.inf:
        raise ValueError(f"a measured value of {number}")
    return number


@cache
def _warn_once(message: str) -> None:
    log.warning("%s", message)
