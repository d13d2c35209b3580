"""Outcomes -> cells -> a table, or JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from vkprefill.evaluation.methods import DENSE, DENSE_STATE
from vkprefill.evaluation.runs import Outcome
from vkprefill.specprefill.plan import CHECK_REVISED

Z_95 = 1.96


@dataclass(frozen=True)
class Cell:
    """The tasks of one length by one method.

    right: matches of n; right_low, right_high: the 95 % interval of their share (Wilson); right_by_kind: kind ->
    [right, n]; same_first: share of first tokens equal to the dense run's, kl_mean in nats, None without a dense run;
    kept_share: mean; times: medians in milliseconds. score: mean share of what was expected that answers have;
    same_answer: share of answers whose text is the dense run's; kept_right of dense_right: tasks that are right here
    among those right densely (None without dense answers); revised: checked answers that the dense model revised,
    check_ms: what checks took (None of answers that are not checked).
    """

    length: int | None
    budget: str
    method: str
    variant: str
    n: int
    right: int
    right_share: float
    right_low: float
    right_high: float
    right_by_kind: dict[str, list[int]]
    same_first: float | None
    kl_mean: float | None
    kept_share: float
    prompt_n: float
    ttft_ms: float
    score_ms: float
    lookahead_ms: float
    select_ms: float
    prefill_ms: float
    score: float | None = None
    same_answer: float | None = None
    dense_right: int | None = None
    kept_right: int | None = None
    revised: int | None = None
    check_ms: float | None = None

    @property
    def name(self) -> str:
        return f"{self.method} {self.variant}".strip()


def wilson(right: int, n: int) -> tuple[float, float]:
    """The 95 % score interval of a binomial share."""
    share, spread = right / n, Z_95**2 / n
    middle = (share + spread / 2) / (1 + spread)
    half = Z_95 * math.sqrt(share * (1 - share) / n + spread / (4 * n)) / (1 + spread)
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))  # rounding at 0 and 1


def cells(outcomes: Sequence[Outcome]) -> list[Cell]:
    """In the order in which they first came, but all of a length and budget together."""
    groups: dict[tuple, list[Outcome]] = {}
    for one in outcomes:
        groups.setdefault((one.length, one.budget, one.method, one.variant), []).append(one)
    lengths, budgets = ([*dict.fromkeys(key[i] for key in groups)] for i in (0, 1))
    ordered = sorted(groups, key=lambda key: (lengths.index(key[0]), budgets.index(key[1])))
    return [_cell(*key, groups[key]) for key in ordered]


def _cell(length: int | None, budget: str, method: str, variant: str, group: list[Outcome]) -> Cell:
    right, n = sum(one.right for one in group), len(group)
    by_kind: dict[str, list[int]] = {}
    for one in group:
        counts = by_kind.setdefault(one.kind, [0, 0])
        counts[0] += one.right
        counts[1] += 1
    compared = [one for one in group if one.kl is not None]
    answered = [one for one in group if one.dense_right is not None]
    dense_right = [one for one in answered if one.dense_right]

    def median(name: str) -> float:
        return float(np.median([getattr(one, name) for one in group]))

    return Cell(
        length,
        budget,
        method,
        variant,
        n,
        right,
        right / n,
        *wilson(right, n),
        by_kind,
        float(np.mean([one.same_first for one in compared])) if compared else None,
        float(np.mean([one.kl for one in compared])) if compared else None,
        float(np.mean([one.kept_n / one.prompt_n for one in group])),
        float(np.mean([one.prompt_n for one in group])),
        *map(median, ("ttft_ms", "score_ms", "lookahead_ms", "select_ms", "prefill_ms")),
        score=float(np.mean([one.score for one in group])),
        same_answer=float(np.mean([one.same_answer for one in answered])) if answered else None,
        dense_right=len(dense_right) if answered else None,
        kept_right=sum(one.right for one in dense_right) if answered else None,
        revised=sum(one.check == CHECK_REVISED for one in group) if group[0].check else None,
        check_ms=median("check_ms") if group[0].check else None,
    )


COLUMNS = (
    "length",
    "budget",
    "method",
    "right",
    "95 %",
    "dense kept",
    "score %",
    "by kind",
    "same %",
    "first %",
    "KL",
    "kept %",
    "revised",
    "TTFT ms",
    "check ms",
    "score+look+select+prefill",
)
OPTIONAL = (
    "dense kept",
    "score %",
    "same %",
    "revised",
    "check ms",
)  # columns that are shown where some cell has a value
ROOM = {  # columns that a narrow terminal has no room for -> characters of one that has
    "95 %": 100,
    "TTFT ms": 100,
    "check ms": 100,
    "score %": 150,
    "by kind": 150,
    "same %": 150,
    "score+look+select+prefill": 150,
}
LEGEND = (
    "right: answers that match, of n, with the 95 % interval of the share. dense kept: right of those that are right "
    "densely. score: share of what was expected that answers have. same: share of answers with the dense run's text. "
    "first: share of first tokens as in the dense run. KL: of the first token's distribution from the dense run's, "
    "nats. kept: share of the prompt that the model ran (dense-state: that attention sees; self: that later layers "
    "ran). revised: checked answers in which the dense model said something else. Times: medians; TTFT is to the "
    "logits of the first token, check is the dense prefill with the comparison, while or after the sparse answer comes."
)


def columns(found: Sequence[Cell]) -> tuple[str, ...]:
    """Those of COLUMNS that the cells have values for."""
    texts = zip(COLUMNS, *map(_row, found), strict=True)
    return tuple(name for name, *values in texts if name not in OPTIONAL or {*values} != {"-"})


def rows(found: Sequence[Cell]) -> list[tuple[str, ...]]:
    """The cells' texts, one row each, in the order of columns(found)."""
    shown = [COLUMNS.index(name) for name in columns(found)]
    return [tuple(row[i] for i in shown) for row in map(_row, found)]


def _row(c: Cell) -> tuple[str, ...]:
    split = "+".join(f"{ms:.0f}" for ms in (c.score_ms, c.lookahead_ms, c.select_ms, c.prefill_ms))
    timed = c.method != DENSE_STATE  # it is a dense prefill and a slow copy
    return (
        "file" if c.length is None else str(c.length),
        c.budget or "all",
        c.name,
        f"{c.right}/{c.n}",
        f"{c.right_low * 100:.0f}-{c.right_high * 100:.0f}",
        "-" if c.dense_right is None else f"{c.kept_right}/{c.dense_right}",
        _percent(c.score),
        ", ".join(f"{kind} {a}/{n}" for kind, (a, n) in c.right_by_kind.items()),
        _percent(c.same_answer),
        _percent(c.same_first),
        "-" if c.kl_mean is None else f"{c.kl_mean:.2g}",
        f"{c.kept_share * 100:.1f}",
        "-" if c.revised is None else f"{c.revised}/{c.n}",
        f"{c.ttft_ms:.0f}" if timed else "-",
        "-" if c.check_ms is None else f"{c.check_ms:.0f}",
        split if timed and c.method != DENSE else "-",
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share * 100:.0f}"


def table(found: Sequence[Cell], width: int) -> Table:
    """For a terminal of so many characters."""
    made, last = (
        Table(caption=LEGEND, caption_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True),
        None,
    )
    names = columns(found)
    shown = [i for i, name in enumerate(names) if width >= ROOM.get(name, 0)]
    for name in (names[i] for i in shown):
        is_text = name in ("method", "by kind")
        made.add_column(name, justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text)
    for cell, row in zip(found, rows(found), strict=True):
        if last is not None and cell.length != last:
            made.add_section()
        last = cell.length
        made.add_row(*(row[i] for i in shown))
    return made


def markdown(found: Sequence[Cell], about: dict[str, object]) -> str:
    """The same table for a file, after what was run and where."""
    where = "{date}, {device}, driver {driver}, {model} with {draft}, vkprefill {version}".format(**about)
    names = columns(found)
    lines = [names, ["---"] * len(names), *rows(found)]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"    {about['command']}\n\n{where}\n\n{body}\n\n{LEGEND}\n"


def as_json(outcomes: Sequence[Outcome], about: dict[str, object]) -> dict[str, object]:
    """about: what was run and where; then the cells and every outcome."""
    return {
        **about,
        "cells": [asdict(cell) for cell in cells(outcomes)],
        "outcomes": [{**asdict(o), "ttft_ms": o.ttft_ms} for o in outcomes],
    }
