"""Cells -> a picture: right answers over the prompt's length, a panel for each budget, a line for each method."""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

from vkprefill.errors import RequestError
from vkprefill.evaluation.methods import DENSE
from vkprefill.evaluation.report import Cell


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
    figure = Figure(figsize=(5 * len(budgets), 4), layout="constrained")
    panels = figure.subplots(1, len(budgets), sharey=True, squeeze=False)[0]
    for axes, budget in zip(panels, budgets, strict=True):
        shown = [c for c in cells if c.method == DENSE or c.budget == budget]
        for name in dict.fromkeys(c.name for c in shown):
            line = [c for c in shown if c.name == name]
            at = [c.length or round(c.prompt_n) for c in line]
            shares = [100 * c.right_share for c in line]
            errors = [
                [100 * (c.right_share - c.right_low) for c in line],
                [100 * (c.right_high - c.right_share) for c in line],
            ]
            axes.errorbar(at, shares, yerr=errors, marker="o", capsize=3, label=name)
        axes.set(title=f"{budget} kept" if budget else "", xlabel="prompt tokens", ylim=(-3, 103))
    figure.axes[0].set_ylabel("right answers, %")
    figure.axes[0].legend()
    figure.savefig(file, format="png", dpi=150)
