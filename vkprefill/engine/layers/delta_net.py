"""Gated DeltaNet: causal convolution, gated delta rule with a matrix state per value head, gated norm."""

from __future__ import annotations

from vkprefill.engine import kernels
from vkprefill.engine.halves import half_for
from vkprefill.engine.kept_rows import kept_offsets
from vkprefill.engine.layers.context import LayerContext
from vkprefill.engine.points import Rows, whole_rows
from vkprefill.engine.weights import DeltaNetWeights
from vkprefill.vulkan.program import Program

OUTPUT = "linear_attn.hook_out", "hook_attn_out"  # two names of one point


def delta_net(p: Program, at: LayerContext, w: DeltaNetWeights) -> None:
    """x[T, D] += the delta net of h[T, D]; advances the layer's states."""
    c, s, half, heads = at.config, at.scratch, at.half, kernels.DeltaHeads.of(at.config)
    at.point(p, "linear_attn.hook_in", s.h)
    kernels.linear(p, s.h, w.attn_qkv, s.qkv_raw, half=half)
    _announce_qkv(p, at, whole_rows(s.qkv_raw), "_pre_conv")
    kernels.linear(p, s.h, w.attn_gate, s.z, half=half)
    at.point(p, "linear_attn.hook_gate_input", whole_rows(s.z, heads.Hv))
    kernels.linear(p, s.h, w.ssm_alpha, s.alpha, half=half)
    kernels.linear(p, s.h, w.ssm_beta, s.beta, half=half)
    (_few_rows if at.few_rows else _prompt)(p, at, w)
    at.point(p, "linear_attn.hook_recurrence_out", whole_rows(s.delta_out, heads.Hv))
    kernels.gated_norm(p, s.z, w.ssm_norm, s.delta_out, eps=c.rms_norm_eps, half=half_for(w.ssm_out, half))
    out = at.branch(p, *OUTPUT)
    kernels.linear(p, s.delta_out, w.ssm_out, out, add=True, half=half)
    at.join(p, out, *OUTPUT)


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
    heads = kernels.DeltaHeads.of(c)
    _announce_inputs(p, at, whole_rows(s.qkv), Rows(s.gates, heads.Hv, 1, 2 * heads.Hv, 2))
    kernels.delta_rule(
        p,
        s.qkv,
        s.gates,
        pool.state,
        s.delta_out,
        heads,
        state_offset=state.recurrent,
    )


def _few_rows(p: Program, at: LayerContext, w: DeltaNetWeights) -> None:
    """Projections of a few rows -> delta_out; the states are those before them, with the rows that waited."""
    c, s, pool = at.config, at.scratch, at.pool
    state, kept, heads = pool.offsets[at.index], pool.kept.buffer, kernels.DeltaHeads.of(c)
    vectors = kernels.DeltaVectors(w.ssm_conv1d, w.ssm_dt, w.ssm_a)
    inputs = s.qkv_raw, s.alpha, s.beta
    kernels.delta_inputs(p, inputs, vectors, pool.state, kept, state, heads, eps=c.rms_norm_eps)
    qkv_at, gates_at = kept_offsets(heads.channels)
    qkv = Rows(kept, 1, heads.channels, heads.channels, heads.channels, state.kept + qkv_at, kept=True)
    _announce_inputs(p, at, qkv, Rows(kept, heads.Hv, 1, 2 * heads.Hv, 2, state.kept + gates_at, kept=True))
    kernels.delta_rows(p, kept, pool.state, s.delta_out, state, heads)


def _announce_inputs(p: Program, at: LayerContext, qkv: Rows, gates: Rows) -> None:
    """What the delta rule reads: qkv [T, C], queries scaled; gates [T, Hv, 2], (log decay, beta)."""
    _announce_qkv(p, at, qkv, "", query_factor=at.config.linear_key_head_dim**0.5)
    at.point(p, "linear_attn.hook_log_decay", gates)
    at.point(p, "linear_attn.hook_beta", gates.part(1, gates.heads, 1, gates.head_stride))


def _announce_qkv(p: Program, at: LayerContext, qkv: Rows, suffix: str, query_factor: float = 1.0) -> None:
    heads = kernels.DeltaHeads.of(at.config)
    keys = heads.Hk * heads.Dk
    at.point(p, f"linear_attn.hook_q{suffix}", qkv.part(0, heads.Hk, heads.Dk, factor=query_factor))
    at.point(p, f"linear_attn.hook_k{suffix}", qkv.part(keys, heads.Hk, heads.Dk))
    at.point(p, f"linear_attn.hook_v{suffix}", qkv.part(2 * keys, heads.Hv, heads.Dv))
