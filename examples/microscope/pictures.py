"""What the scripts beside this one share: a model and its prompts, and pictures (extra vkprefill[plots])."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import vkprefill
from vkprefill.hub.at_hand import built_in


def arguments(text: str) -> argparse.Namespace:
    """-m: a model in place of the built-in one; -o: the picture."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("-m", "--model", metavar="FILE", default=built_in("built-in"))
    parser.add_argument("-o", "--output", metavar="FILE.svg", type=Path, help="draw a picture")
    return parser.parse_args()


def chat(model: vkprefill.Model, text: str) -> list[int]:
    """The token ids of a conversation that begins with this message, up to where the answer begins."""
    return model.chat_template.encode([{"role": "user", "content": text}])


def words(model: vkprefill.Model, ids: Sequence[int]) -> list[str]:
    """Each token's text, as it can be shown."""
    return [model.tokenizer.decode([token]).replace("\n", "\\n") for token in ids]


def heat_map(
    file: Path,
    values: np.ndarray,
    columns: Sequence[str],
    label: str,
    texts: Sequence[Sequence[str]] | None = None,
) -> None:
    """values [layers, tokens], from 0 to 1 and beyond; texts: in the cells."""
    from matplotlib.figure import Figure

    layers, tokens = values.shape
    width = 0.7 if texts else 0.4
    figure = Figure(figsize=(2 + width * tokens, 1.6 + 0.3 * layers), layout="constrained")
    axes = figure.subplots()
    picture = axes.imshow(values, aspect="auto", cmap="Oranges", vmin=0, vmax=1, origin="lower")
    axes.set_xticks(range(tokens), columns, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(layers))
    axes.set_ylabel("after layer")
    for layer, row in enumerate(texts or ()):
        for token, text in enumerate(row):
            colour = "white" if values[layer, token] > 0.6 else "black"
            axes.text(token, layer, text, ha="center", va="center", fontsize=6.5, color=colour)
    figure.colorbar(picture, ax=axes, label=label)
    save(figure, file)


def save(figure: object, file: Path) -> None:
    """The same bytes each time; text of an SVG stays text."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "vkprefill"}):
        figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    print(f"{file}: written")
