"""Gated DeltaNet: causal convolution, gated delta rule with a matrix state per value head, gated norm."""

from __future__ import annotations

from vkprefill.engine import kernels
from vkprefill.engine.halves import half_for
from vkprefill.engine.layers.context import LayerContext
from vkprefill.engine.weights import DeltaNetWeights
from vkprefill.vulkan.program import Program


def delta_net(p: Program, at: LayerContext, w: DeltaNetWeights) -> None:
    """x[T, D] += the delta net of h[T, D]; advances the layer's states."""
    c, s, half = at.config, at.scratch, at.half
    kernels.linear(p, s.h, w.attn_qkv, s.qkv_raw, half=half)
    kernels.linear(p, s.h, w.attn_gate, s.z, half=half)
    kernels.linear(p, s.h, w.ssm_alpha, s.alpha, half=half)
    kernels.linear(p, s.h, w.ssm_beta, s.beta, half=half)
    (_few_rows if at.few_rows else _prompt)(p, at, w)
    kernels.gated_norm(p, s.z, w.ssm_norm, s.delta_out, eps=c.rms_norm_eps, half=half_for(w.ssm_out, half))
    kernels.linear(p, s.delta_out, w.ssm_out, s.x, add=True, half=half)


def _prompt(p: Program, at: LayerContext, w: DeltaNetWeights) -> None:
    """Projections of any number of tokens -> delta_out; the states are those after them."""
    c, s, pool = at.config, at.scratch, at.pool
    state = pool.offsets[at.index]
    kernels.causal_conv(
        p,
        s.qkv_raw,
        w.ssm_conv1d,
        pool.state,
        s.qkv,
        state_offset=state.conv,
        key_heads=c.linear_num_key_heads,
        key_dim=c.linear_key_head_dim,
        eps=c.rms_norm_eps,
    )
    kernels.delta_gates(p, s.alpha, s.beta, w.ssm_dt, w.ssm_a, s.gates)
    kernels.delta_rule(
        p,
        s.qkv,
        s.gates,
        pool.state,
        s.delta_out,
        kernels.DeltaHeads.of(c),
        state_offset=state.recurrent,
    )


def _few_rows(p: Program, at: LayerContext, w: DeltaNetWeights) -> None:
    """Projections of a few rows -> delta_out; the states are those before them, with the rows that waited."""
    c, s, pool = at.config, at.scratch, at.pool
    state, kept, heads = pool.offsets[at.index], pool.kept.buffer, kernels.DeltaHeads.of(c)
    vectors = kernels.DeltaVectors(w.ssm_conv1d, w.ssm_dt, w.ssm_a)
    inputs = s.qkv_raw, s.alpha, s.beta
    kernels.delta_inputs(p, inputs, vectors, pool.state, kept, state, heads, eps=c.rms_norm_eps)
    kernels.delta_rows(p, kept, pool.state, s.delta_out, state, heads)
