"""Shaders' sources as text that two checkouts can be compared by."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

SHADERS = Path(__file__).resolve().parents[1] / "shaders"

INCLUDE = re.compile(r'#include "(.+)"')


def source_text(path: Path, folder: Path = SHADERS) -> str:
    """A source without comments and indentation, its includes in place."""
    lines = (re.sub(r"\s*//.*", "", line).strip() for line in path.read_text().splitlines())
    return "\n".join(
        source_text(folder / "include" / found[1], folder) if (found := INCLUDE.fullmatch(line)) else line
        for line in lines
        if line
    )


def source_digest(path: Path, folder: Path = SHADERS, defines: Sequence[str] = ()) -> str:
    """Of a source with its includes and definitions: comments do not count, nor which compiler it goes through."""
    return hashlib.sha256("\n".join([*defines, source_text(path, folder)]).encode()).hexdigest()[:16]
