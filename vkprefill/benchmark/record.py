"""Measured figures, the record that keeps them as JSON, and the comparison of two records.

A figure is a name, a unit and one value for each repetition. Units with a "/" are rates, of which more is better; of
all others (seconds, MiB, counts) less is better.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path

from vkprefill.errors import RequestError
from vkprefill.vulkan.probe import DeviceInfo
from vkprefill.vulkan.processor import processor

SINGLE_SPREAD = 0.05  # of the median: what a figure measured once is taken to vary by
FASTER, SLOWER, SAME, ADDED, REMOVED = "faster", "slower", "same", "only in the new one", "only in the old one"


@dataclass(frozen=True)
class Figure:
    """values: one for each repetition, in the order measured."""

    name: str
    unit: str
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def lowest(self) -> float:
        return min(self.values)

    @property
    def highest(self) -> float:
        return max(self.values)

    @property
    def more_is_better(self) -> bool:
        return "/" in self.unit

    def bounds(self) -> tuple[float, float]:
        """Lowest and highest value; of a figure measured once 5 % to each side."""
        if len(self.values) > 1:
            return self.lowest, self.highest
        return self.median * (1 - SINGLE_SPREAD), self.median * (1 + SINGLE_SPREAD)


@dataclass
class Record:
    """about: command, date, device, driver, commit, settings; details: tables beside the figures."""

    about: dict[str, object]
    figures: list[Figure]
    details: dict[str, object] = field(default_factory=dict)

    def to_json(self) -> str:
        figures = [{"name": f.name, "unit": f.unit, "median": f.median, "values": list(f.values)} for f in self.figures]
        return json.dumps({"about": self.about, "figures": figures, **self.details}, indent=1, ensure_ascii=False)

    def write(self, path: str | Path) -> None:
        Path(path).write_text(self.to_json() + "\n", encoding="utf-8")

    @classmethod
    def from_json(cls, text: str, where: str) -> Record:
        """Raises RequestError, naming `where`, for text that is no record."""
        try:
            data = json.loads(text)
            figures = [
                Figure(str(f["name"]), str(f["unit"]), tuple(float(v) for v in f["values"])) for f in data["figures"]
            ]
            if not all(f.values for f in figures):
                raise ValueError("a figure has no values")
            return cls(dict(data["about"]), figures, {k: v for k, v in data.items() if k not in ("about", "figures")})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise RequestError(f"{where}: not a record of a benchmark: {error!r}") from None

    @classmethod
    def read(cls, path: str | Path) -> Record:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
        return cls.from_json(text, str(path))


def about(command: str, info: DeviceInfo, **more: object) -> dict[str, object]:
    """What every record says about itself."""
    return {
        "command": command,
        "date": date.today().isoformat(),
        "device": info.name,
        "device_type": info.type,
        "driver": info.driver,
        "processor": str(processor()),
        "version": version("vkprefill"),
        "commit": commit(),
        **more,
    }


def commit() -> str | None:
    """The commit of the working tree that this file lies in, with a + where the package was changed since, or None."""
    folder = Path(__file__).resolve().parents[1]  # the package

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != folder.parent:
            return None
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", "../shaders", "../native")
        return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


@dataclass(frozen=True)
class Change:
    """A figure of two records. ratio: new / old median, or None; verdict: one of the constants above."""

    name: str
    unit: str
    old: float | None
    new: float | None
    ratio: float | None
    verdict: str


def compare(old: Iterable[Figure], new: Iterable[Figure]) -> list[Change]:
    """Figures by name and unit. Better or worse is what lies beyond the spread of both: their ranges do not meet."""
    before, after = ({(f.name, f.unit): f for f in figures} for figures in (old, new))
    changes = []
    for key in {**before, **after}:
        a, b = before.get(key), after.get(key)
        if a is None or b is None:
            changes.append(Change(*key, a and a.median, b and b.median, None, ADDED if a is None else REMOVED))
            continue
        (a_low, a_high), (b_low, b_high) = a.bounds(), b.bounds()
        verdict = SAME
        if b_low > a_high:
            verdict = FASTER if a.more_is_better else SLOWER
        elif b_high < a_low:
            verdict = SLOWER if a.more_is_better else FASTER
        changes.append(Change(*key, a.median, b.median, b.median / a.median if a.median else None, verdict))
    return changes


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column to the left, the others to the right."""
    lines = [list(columns), *(list(row) for row in rows)]
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(columns))]
    cells = [
        [
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in lines
    ]
    rule = ["-" * width if i == 0 else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    return "\n".join("| " + " | ".join(line) + " |" for line in [cells[0], rule, *cells[1:]])


def figures_table(figures: Iterable[Figure]) -> str:
    rows = [
        (
            f.name,
            f.unit,
            number(f.median),
            f"{number(f.lowest)} .. {number(f.highest)}" if len(f.values) > 1 else "once",
        )
        for f in figures
    ]
    return markdown_table(("figure", "unit", "median", "range"), rows)


def changes_table(changes: Iterable[Change]) -> str:
    def shown(value: float | None) -> str:
        return "-" if value is None else number(value)

    rows = [
        (c.name, c.unit, shown(c.old), shown(c.new), "-" if c.ratio is None else f"{c.ratio:.3f}", c.verdict)
        for c in changes
    ]
    return markdown_table(("figure", "unit", "old", "new", "new / old", ""), rows)


def describe(about: Mapping[str, object]) -> str:
    """`about` as a list of Markdown."""
    return "\n".join(f"- {name}: {value}" for name, value in about.items() if value is not None)


def number(value: float) -> str:
    """Three digits that count, without an exponent."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 2 if abs(value) >= 1 else 3
    if abs(value) >= 10:
        digits = 1
    text = f"{value:.{digits}f}"
    return text if float(text) else f"{value:.2g}"
