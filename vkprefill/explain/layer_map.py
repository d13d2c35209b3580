"""What a prompt's last token reads, in every layer: softmax rows and the exact rows of delta-net layers, in one map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from vkprefill.engine.capture import AttentionCapture
from vkprefill.engine.model import Model
from vkprefill.engine.runner import PrefillProgress
from vkprefill.explain.explanation import HEAT_LEVELS

MOST_COLUMNS = 240  # of a layer's strip: longer prompts have several tokens in one
HEAT_RANGE = 1000  # the colours of a layer span a thousandth of its greatest weight upwards, on a logarithmic scale
ATTENTION, DELTA_NET = "attention", "delta net"

STYLE = """
.layers th { width: 8rem; padding: 0 1rem 0 0; white-space: nowrap; }
.layers td { padding: 0; } .layers { width: 100%; }
.layers svg { display: block; width: 100%; height: 1.1rem; background: var(--card); }
.layers rect { fill: rgb(var(--heat) / calc(var(--most) * var(--level))); }
"""


@dataclass(frozen=True, eq=False)
class LayerMap:
    """Layers of a model over T tokens. kinds: of each layer; weights: float32 [layers, T], means over the heads of what
    the last token takes of each: shares that sum to 1 in attention layers, magnitudes in delta-net layers.
    """

    kinds: tuple[str, ...]
    weights: np.ndarray

    def as_dict(self) -> dict[str, object]:
        return {"kinds": list(self.kinds), "weights": [[float(str(x)) for x in row] for row in self.weights]}


def layer_map(model: Model, token_ids: Sequence[int], progress: PrefillProgress | None = None) -> LayerMap:
    """A dense prefill of its own. Raises what Model.prefill raises, OutOfMemoryError where the keys do not fit."""
    capture = AttentionCapture(queries=(-1,), delta_layers=None)
    if not model.config.attention_layers:
        capture.layers = ()
    model.prefill(token_ids, capture=capture, progress=progress)
    layers = range(model.config.num_hidden_layers)
    rows = [capture.pattern[i] if i in capture.pattern else np.abs(capture.delta_pattern[i]) for i in layers]
    kinds = tuple(ATTENTION if layer in capture.pattern else DELTA_NET for layer in layers)
    return LayerMap(kinds, np.stack([row[:, 0].mean(axis=0) for row in rows]).astype(np.float32))


def strips(found: LayerMap) -> str:
    """HTML: a strip for each layer, on a scale of its own."""
    rows = "".join(
        f'<tr><th scope="row">{layer} {escape(kind)}</th><td>{_strip(layer, weights)}</td></tr>'
        for layer, (kind, weights) in enumerate(zip(found.kinds, found.weights, strict=True))
    )
    return f"""<figure><table class="layers">{rows}</table>
<figcaption>What the last token takes of each token, mean over the heads; every layer has its own scale. Of attention
layers softmax weights. Of delta-net layers the magnitude of how much of the token's value is in the output:
exact, less what later tokens removed. Colours are logarithmic, down to a thousandth of the layer's
greatest.</figcaption></figure>"""


def levels(weights: np.ndarray) -> np.ndarray:
    """int, 0 to HEAT_LEVELS - 1, of a layer's weights."""
    top = float(weights.max())
    if not top > 0:
        return np.zeros(len(weights), int)
    share = 1 + np.log(np.maximum(weights / top, 1 / HEAT_RANGE)) / math.log(HEAT_RANGE)
    return np.minimum((share * HEAT_LEVELS).astype(int), HEAT_LEVELS - 1)


def _strip(layer: int, weights: np.ndarray) -> str:
    total = len(weights)
    width = -(-total // MOST_COLUMNS)
    starts = np.arange(0, total, width)
    greatest = np.maximum.reduceat(weights, starts)
    bars = []
    for start, weight, level in zip(starts.tolist(), greatest.tolist(), levels(greatest).tolist(), strict=True):
        end = min(start + width, total)
        if level:
            tokens = f"token {start}" if end == start + 1 else f"tokens {start} to {end - 1}"
            title = f"<title>layer {layer}, {tokens}: {weight:.3g}</title>"
            bars.append(f'<rect class="h{level}" x="{start}" y="0" width="{end - start}" height="1">{title}</rect>')
    label = f"layer {layer}"
    return (
        f'<svg viewBox="0 0 {total} 1" preserveAspectRatio="none" role="img" aria-label="{label}">{"".join(bars)}</svg>'
    )
