"""What a prompt's last token reads, in every layer: softmax rows and the exact rows of delta-net layers, in one map."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from vkprefill.engine.capture import AttentionCapture
from vkprefill.engine.delta_capture import KIND
from vkprefill.engine.model import Model
from vkprefill.engine.runner import PrefillProgress
from vkprefill.explain.explanation import HEAT_LEVELS
from vkprefill.work import Pause, Work, whole

MOST_COLUMNS = 240  # of a layer's strip: longer prompts have several tokens in one
HEAT_RANGE = 1000  # the colours of a layer span a thousandth of its greatest weight upwards, on a logarithmic scale
ATTENTION, DELTA_NET = "attention", "delta net"


@dataclass(frozen=True, eq=False)
class LayerMap:
    """Layers of a model over T tokens. kinds: of each layer; weights: float32 [layers, T], means over the heads of what
    the last token takes of each: shares that sum to 1 in attention layers, magnitudes in delta-net layers;
    memory_bytes: of the device, for the rows and the keys that they are made of.
    """

    kinds: tuple[str, ...]
    weights: np.ndarray
    memory_bytes: int = 0

    def columns(self, most: int = MOST_COLUMNS) -> tuple[np.ndarray, np.ndarray]:
        """In at most so many columns of as many tokens each, but for the last: (bounds int [C + 1], weights float32
        [layers, C], the greatest of each column).
        """
        total = self.weights.shape[1]
        starts = np.arange(0, total, -(-total // most))
        return np.append(starts, total), np.maximum.reduceat(self.weights, starts, axis=1)

    def as_dict(self) -> dict[str, object]:
        weights = [[float(str(x)) for x in row] for row in self.weights]
        return {"kinds": list(self.kinds), "weights": weights, "memory_bytes": self.memory_bytes}


def layer_map(model: Model, token_ids: Sequence[int], progress: PrefillProgress | None = None) -> LayerMap:
    """A dense prefill of its own. Raises what Model.prefill raises, OutOfMemoryError where the keys do not fit, before
    anything runs.
    """
    return whole(map_work(model, token_ids, progress))


def map_work(model: Model, token_ids: Sequence[int], progress: PrefillProgress | None = None) -> Work[LayerMap]:
    """The same, a slice for each run of the engine."""
    capture, run = AttentionCapture(queries=(-1,), delta_layers=None), model.runner
    if not model.config.attention_layers:
        capture.layers = ()
    before, cache = model.device.allocated[KIND], model.new_cache()
    try:
        ids, _ = run.checked(token_ids, None, cache)
        with run.turn:  # room for all of it
            cache.reserve(len(ids))
            capture.recorder_for(run, cache, np.zeros(1, np.int64), len(ids))
        while (done := len(cache)) < len(ids):
            part = ids[done : done + run.tokens_per_run(done)]
            tell = progress and (lambda some, _, done=done: progress(done + some, len(ids)))
            model.prefill(part, cache=cache, capture=capture, progress=tell)
            yield Pause.SLICE
    finally:
        cache.close()
    layers = range(model.config.num_hidden_layers)
    rows = [capture.pattern[i] if i in capture.pattern else np.abs(capture.delta_pattern[i]) for i in layers]
    kinds = tuple(ATTENTION if layer in capture.pattern else DELTA_NET for layer in layers)
    weights = np.stack([row[:, 0].mean(axis=0) for row in rows]).astype(np.float32)
    return LayerMap(kinds, weights, model.device.allocated[KIND] - before)


def strips(found: LayerMap) -> str:
    """HTML: a strip for each layer, on a scale of its own."""
    bounds, columns = found.columns()
    rows = "".join(
        f'<tr><th scope="row">{layer} {escape(kind)}</th><td>{_strip(layer, bounds, weights)}</td></tr>'
        for layer, (kind, weights) in enumerate(zip(found.kinds, columns, strict=True))
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


def _strip(layer: int, bounds: np.ndarray, weights: np.ndarray) -> str:
    total = int(bounds[-1])
    bars = []
    places = zip(bounds[:-1].tolist(), bounds[1:].tolist(), weights.tolist(), levels(weights).tolist(), strict=True)
    for start, end, weight, level in places:
        if level:
            tokens = f"token {start}" if end == start + 1 else f"tokens {start} to {end - 1}"
            title = f"<title>layer {layer}, {tokens}: {weight:.3g}</title>"
            bars.append(f'<rect class="h{level}" x="{start}" y="0" width="{end - start}" height="1">{title}</rect>')
    label = f"layer {layer}"
    return (
        f'<svg viewBox="0 0 {total} 1" preserveAspectRatio="none" role="img" aria-label="{label}">{"".join(bars)}</svg>'
    )
