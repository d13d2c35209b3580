"""Attention rows as a picture, through matplotlib (extra vkprefill[plots])."""

from __future__ import annotations

from typing import BinaryIO

import numpy as np

from vkprefill.engine.capture import AttentionCapture

LEAST_WEIGHT = 1e-4  # where the colours begin; their scale is logarithmic, for most weights are tiny
MOST_NAMED_QUERIES = 16  # with a label of their own
WIDTH_INCHES, LAYER_INCHES = 11.0, 2.2
MOST_INCHES = 200.0  # of height; beyond 65,535 pixels a PNG cannot be written


def plot_attention(capture: AttentionCapture, file: BinaryIO) -> None:
    """A PNG with one panel a layer: heads by keys for a single query, else queries by keys (mean over the heads). Rows
    of delta-net layers have signs: they are blue where they take away.
    """
    from matplotlib.colors import LogNorm, SymLogNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    every = {**capture.pattern, **capture.delta_pattern}
    layers = sorted(every)
    height = min(1.0 + LAYER_INCHES * len(layers), MOST_INCHES)
    figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
    panels = figure.subplots(len(layers), 1, squeeze=False, sharex=True)[:, 0]
    single = len(capture.query_positions) == 1
    pictures = {}
    query_label = "query position" if len(capture.query_positions) <= MOST_NAMED_QUERIES else "query"
    for layer, axes in zip(layers, panels, strict=True):
        weights = every[layer][:, 0] if single else every[layer].mean(axis=0)
        signed = layer in capture.delta_pattern
        if signed:
            look = {"norm": SymLogNorm(LEAST_WEIGHT, vmin=-1, vmax=1), "cmap": "coolwarm"}
        else:
            weights, look = np.maximum(weights, LEAST_WEIGHT), {"norm": LogNorm(LEAST_WEIGHT, 1), "cmap": "magma"}
        pictures[signed] = axes.imshow(weights, aspect="auto", interpolation="nearest", **look)
        axes.set_title(f"layer {layer}{', delta net' if signed else ''}", loc="left", fontsize=10)
        axes.set_ylabel("head" if single else query_label)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        if not single and len(capture.query_positions) <= MOST_NAMED_QUERIES:
            axes.set_yticks(range(len(capture.query_positions)), capture.query_positions)
    panels[-1].set_xlabel("key position")
    what = f"query at position {capture.query_positions[0]}" if single else "mean over the heads"
    for signed, picture in pictures.items():
        kind = "delta-net weight" if signed else "attention weight"
        figure.colorbar(picture, ax=list(panels), label=f"{kind} ({what})", shrink=min(1.0, 4 / height), anchor=(0, 1))
    figure.savefig(file, format="png", dpi=120)
