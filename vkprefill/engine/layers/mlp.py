"""SwiGLU feed-forward: x += down(silu(gate(h)) * up(h)), h the normed x."""

from __future__ import annotations

from vkprefill.engine import kernels
from vkprefill.engine.halves import half_for
from vkprefill.engine.layers.context import LayerContext
from vkprefill.engine.weights import MLPWeights
from vkprefill.vulkan.program import Program


def mlp(p: Program, at: LayerContext, w: MLPWeights) -> None:
    """x[T, D] += the feed-forward of h[T, D]."""
    gated(p, at, w)
    out = at.branch(p, "hook_mlp_out")
    kernels.linear(p, at.scratch.ffn_gate, w.ffn_down, out, add=True, half=at.half)
    at.join(p, out, "hook_mlp_out")


def gated(p: Program, at: LayerContext, w: MLPWeights) -> None:
    """ffn_gate[T, F] = silu(gate(h)) * up(h), what the last product reads."""
    s, half = at.scratch, at.half
    kernels.linear(p, s.h, w.ffn_gate, s.ffn_gate, half=half)
    at.point(p, "mlp.hook_pre", s.ffn_gate)
    kernels.linear(p, s.h, w.ffn_up, s.ffn_up, half=half)
    at.point(p, "mlp.hook_pre_linear", s.ffn_up)
    kernels.swiglu(p, s.ffn_up, s.ffn_gate, half_for(w.ffn_down, half))
    at.point(p, "mlp.hook_post", s.ffn_gate)
