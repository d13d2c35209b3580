"""Cells -> a picture: right answers over the prompt's length, a panel for each budget, a line for each method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

from vkprefill.errors import RequestError
from vkprefill.evaluation.methods import DENSE
from vkprefill.evaluation.report import Cell

DODGE = 1.012  # factor between neighbouring lines' places, so that equal ones do not hide each other


def require_matplotlib() -> None:
    """RequestError where it is not installed: better before hours of work than after."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise RequestError("--plot: matplotlib is not installed; run: pip install 'vkprefill[plots]'") from None


def plot(cells: Sequence[Cell], file: BinaryIO) -> None:
    """A PNG."""
    from matplotlib.figure import Figure

    budgets = list(dict.fromkeys(c.budget for c in cells if c.budget)) or [""]
    names = list(dict.fromkeys(c.name for c in cells))
    figure = Figure(figsize=(2.5 + 4.5 * len(budgets), 4), layout="constrained")
    panels = figure.subplots(1, len(budgets), sharey=True, squeeze=False)[0]
    for axes, budget in zip(panels, budgets, strict=True):
        shown = [c for c in cells if c.method == DENSE or c.budget == budget]
        for number, name in enumerate(names):
            line = [c for c in shown if c.name == name]
            at = [_tokens(c) * DODGE ** (number - len(names) / 2) for c in line]
            shares = [100 * c.right_share for c in line]
            below = [100 * (c.right_share - c.right_low) for c in line]
            above = [100 * (c.right_high - c.right_share) for c in line]
            axes.errorbar(at, shares, yerr=[below, above], marker="o", capsize=3, label=name)
        axes.set(title=f"{budget} kept" if budget else "", xlabel="prompt tokens", ylim=(-3, 103), xscale="log")
        axes.set_xticks(ticks := sorted({_tokens(c) for c in shown}), [str(t) for t in ticks])
        axes.minorticks_off()
    panels[0].set_ylabel("right answers, %")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper")
    figure.savefig(file, format="png", dpi=150)


def _tokens(cell: Cell) -> int:
    return cell.length or round(cell.prompt_n)
