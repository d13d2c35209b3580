"""SwiGLU feed-forward: x += down(silu(gate(h)) * up(h)), h the normed x."""

from __future__ import annotations

from vkprefill.engine import kernels
from vkprefill.engine.weights import MLPWeights
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.program import Program


def mlp(p: Program, h: Buffer, w: MLPWeights, x: Buffer, scratch: dict[str, Buffer]) -> None:
    """x[T, D] += the feed-forward of h[T, D]."""
    gate, up = scratch["ffn_gate"], scratch["ffn_up"]
    kernels.linear(p, h, w.ffn_gate, gate)
    kernels.linear(p, h, w.ffn_up, up)
    kernels.swiglu(p, up, gate)
    kernels.linear(p, gate, w.ffn_down, x, add=True)
