"""SwiGLU feed-forward: x += down(silu(gate(h)) * up(h)), h the normed x."""

from __future__ import annotations

from vkprefill.engine import kernels
from vkprefill.engine.scratch import Scratch
from vkprefill.engine.weights import MLPWeights
from vkprefill.vulkan.program import Program


def mlp(p: Program, s: Scratch, w: MLPWeights) -> None:
    """x[T, D] += the feed-forward of h[T, D]."""
    kernels.linear(p, s.h, w.ffn_gate, s.ffn_gate)
    kernels.linear(p, s.h, w.ffn_up, s.ffn_up)
    kernels.swiglu(p, s.ffn_up, s.ffn_gate)
    kernels.linear(p, s.ffn_gate, w.ffn_down, s.x, add=True)
