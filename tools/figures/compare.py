"""Figures in documents: tables and sentences found, and numbers compared as they are rounded there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Table:
    """A table of a document. command: the last line before it that is one, indented as code."""

    document: str
    line: int
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    command: str


def tables(text: str, document: str) -> Iterator[Table]:
    lines = text.splitlines()
    command, start = "", 0
    for i, line in enumerate([*lines, ""]):
        if line.startswith("|"):
            continue
        if i > start + 1:
            header, _, *body = (tuple(map(str.strip, row.strip()[1:-1].split("|"))) for row in lines[start:i])
            yield Table(document, start + 1, header, tuple(body), command)
        start = i + 1
        if line.startswith("    "):
            command = line.strip()


def agrees(cell: str, value: float, *, round_numbers: bool = False) -> bool:
    """Whether the first number in `cell` is the value, rounded to the digits shown.

    round_numbers: the zeros that a whole number ends in do not count, so that 5,200 stands for 5,176.
    """
    found = NUMBER.search(cell)
    if found is None:
        return False
    text = found.group().replace(",", "")
    digits = len(text.partition(".")[2]) if "." in text else 0
    if round_numbers and not digits:
        digits = len(text.rstrip("0")) - len(text)
    return abs(float(text) - value) <= 0.5 * 10.0**-digits * (1 + 1e-9)


@cache
def data(name: str) -> dict:
    return json.loads((BENCHMARKS / name).read_text())


def said(documents: dict[str, str], name: str, pattern: str, values: list[float]) -> Iterator[str]:
    """A document's numbers in a sentence, which may be rounded."""
    found = re.search(pattern.replace(" ", r"\s+"), documents[name])
    if found is None:
        yield f"{name}: does not say: {pattern}"
        return
    for number, value in zip(found.groups(), values, strict=True):
        if not agrees(number, value, round_numbers=True):
            yield f"{name}: {found.group()!r}: found {number}, the record has {value:.6g}"
