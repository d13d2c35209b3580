"""SwiGLU feed-forward: x += down(silu(gate(h)) * up(h)), h the normed x."""

from __future__ import annotations

from vkprefill.engine import kernels
from vkprefill.engine.halves import half_for
from vkprefill.engine.layers.context import LayerContext
from vkprefill.engine.weights import MLPWeights
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.program import Program


def mlp(p: Program, at: LayerContext, w: MLPWeights) -> None:
    """x[T, D] += the feed-forward of h[T, D]."""
    swiglu(p, at, w, at.scratch.x, add=True)


def swiglu(p: Program, at: LayerContext, w: MLPWeights, y: Buffer, *, add: bool = False) -> None:
    """y[T, D] = down(silu(gate(h)) * up(h)); add: y += it."""
    s, half = at.scratch, at.half
    kernels.linear(p, s.h, w.ffn_gate, s.ffn_gate, half=half)
    kernels.linear(p, s.h, w.ffn_up, s.ffn_up, half=half)
    kernels.swiglu(p, s.ffn_up, s.ffn_gate, half_for(w.ffn_down, half))
    kernels.linear(p, s.ffn_gate, w.ffn_down, y, add=add, half=half)
