"""The second half of a layer: one feed-forward for all tokens, or a mixture of experts, as the file has it."""

from __future__ import annotations

from vkprefill.engine.layers.context import LayerContext
from vkprefill.engine.layers.mlp import mlp
from vkprefill.engine.layers.moe import moe
from vkprefill.engine.weights import MixtureWeights, MLPWeights
from vkprefill.vulkan.program import Program


def feed_forward(p: Program, at: LayerContext, w: MLPWeights | MixtureWeights) -> None:
    """x[T, D] += the feed-forward of h[T, D]."""
    if isinstance(w, MixtureWeights):
        moe(p, at, w)
    else:
        mlp(p, at, w)
