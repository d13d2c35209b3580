"""Cells -> a picture: right answers over the prompt's length, a panel for each budget, a line for each method; and,
where layers of the model itself were compared, by layer and budget, a panel for each length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from vkprefill.errors import RequestError
from vkprefill.evaluation.methods import DENSE, SELF, layer_of
from vkprefill.evaluation.report import Cell

if TYPE_CHECKING:
    from matplotlib.figure import SubFigure

DODGE = 1.012  # factor between neighbouring lines' places, so that equal ones do not hide each other


def require_matplotlib() -> None:
    """RequestError where it is not installed: better before hours of work than after."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise RequestError("--plot: matplotlib is not installed; run: pip install 'vkprefill[plots]'") from None


@dataclass(frozen=True)
class LayerGrid:
    """What method self got right at one length, by layer and budget: shares [layers, budgets] of right answers, NaN
    where a budget was not run with a layer; texts: "right/n" of each. title: the length, and settings that differ.
    """

    title: str
    layers: list[int]
    budgets: list[str]
    shares: np.ndarray
    texts: list[list[str]]


def layer_grids(cells: Sequence[Cell]) -> list[LayerGrid]:
    """One for each length and variant of the cells by a layer of the model itself, in their order."""
    groups: dict[tuple[int | None, str], dict[tuple[int, str], Cell]] = {}
    for cell in cells:
        if cell.method == SELF:
            layer, rest = layer_of(cell.variant)
            groups.setdefault((cell.length, rest), {})[layer, cell.budget] = cell
    grids = []
    for (length, rest), group in groups.items():
        layers = sorted({layer for layer, _ in group})
        budgets = list(dict.fromkeys(budget for _, budget in group))
        rows = [[group.get((layer, budget)) for budget in budgets] for layer in layers]
        shares = np.array([[math.nan if c is None else c.right_share for c in row] for row in rows])
        texts = [["" if c is None else f"{c.right}/{c.n}" for c in row] for row in rows]
        title = f"{'file' if length is None else f'{length} tokens'} {rest}".strip()
        grids.append(LayerGrid(title, layers, budgets, shares, texts))
    return grids


def plot(cells: Sequence[Cell], file: BinaryIO) -> None:
    """A PNG."""
    from matplotlib.figure import Figure

    budgets = list(dict.fromkeys(c.budget for c in cells if c.budget)) or [""]
    grids = layer_grids(cells)
    heights = [4, 1.5 + 0.35 * max(len(grid.layers) for grid in grids)] if grids else [4]
    width = 2.5 + 4.5 * len(budgets), 1.5 + sum(1 + 0.8 * len(grid.budgets) for grid in grids)
    figure = Figure(figsize=(max(width), sum(heights)), layout="constrained")
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    _draw_lines(parts[0], cells, budgets)
    if grids:
        _draw_grids(parts[1], grids)
    figure.savefig(file, format="png", dpi=150)


def _draw_lines(figure: SubFigure, cells: Sequence[Cell], budgets: Sequence[str]) -> None:
    """Right answers over the prompt's length: a panel for each budget, a line for each method."""
    names = list(dict.fromkeys(c.name for c in cells))
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


def _draw_grids(figure: SubFigure, grids: Sequence[LayerGrid]) -> None:
    """The same of the model's own layers: a panel for each length, a row for each layer, a column for each budget."""
    panels = figure.subplots(1, len(grids), squeeze=False, width_ratios=[1 + len(grid.budgets) for grid in grids])[0]
    for axes, grid in zip(panels, grids, strict=True):
        image = axes.imshow(100 * grid.shares, vmin=0, vmax=100, cmap="viridis", aspect="auto")
        axes.set_xticks(range(len(grid.budgets)), grid.budgets)
        axes.set_yticks(range(len(grid.layers)), [str(layer) for layer in grid.layers])
        axes.set(title=grid.title, xlabel="kept")
        for row, texts in enumerate(grid.texts):
            for column, text in enumerate(texts):
                dark = grid.shares[row, column] < 0.6
                axes.text(column, row, text, ha="center", va="center", color="white" if dark else "black")
    panels[0].set_ylabel("layer that scores")
    figure.colorbar(image, ax=panels, label="right answers, %")


def _tokens(cell: Cell) -> int:
    return cell.length or round(cell.prompt_n)
