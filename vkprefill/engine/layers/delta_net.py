"""Gated DeltaNet: causal convolution, gated delta rule with a matrix state per value head, gated norm."""

from __future__ import annotations

from vkprefill.engine import kernels
from vkprefill.engine.cache_pool import CachePool
from vkprefill.engine.weights import DeltaNetWeights
from vkprefill.gguf.config import ModelConfig
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.program import Program


def delta_net(
    p: Program,
    h: Buffer,
    w: DeltaNetWeights,
    x: Buffer,
    scratch: dict[str, Buffer],
    *,
    config: ModelConfig,
    pool: CachePool,
    layer: int,
) -> None:
    """x[T, D] += the delta net of h[T, D]; advances the layer's states."""
    c, s, at = config, scratch, pool.offsets[layer]
    kernels.linear(p, h, w.attn_qkv, s["qkv_raw"])
    kernels.linear(p, h, w.attn_gate, s["z"])
    kernels.linear(p, h, w.ssm_alpha, s["alpha"])
    kernels.linear(p, h, w.ssm_beta, s["beta"])
    kernels.causal_conv(p, s["qkv_raw"], w.ssm_conv1d, pool.state, s["qkv"], state_offset=at.conv)
    kernels.delta_gates(p, s["alpha"], s["beta"], w.ssm_dt, w.ssm_a, s["gates"])
    kernels.l2_norm(p, s["qkv"], key_heads=c.linear_num_key_heads, key_dim=c.linear_key_head_dim, eps=c.rms_norm_eps)
    kernels.delta_rule(
        p,
        s["qkv"],
        s["gates"],
        pool.state,
        s["delta_out"],
        state_offset=at.recurrent,
        key_heads=c.linear_num_key_heads,
        value_heads=c.linear_num_value_heads,
        key_dim=c.linear_key_head_dim,
        value_dim=c.linear_value_head_dim,
    )
    kernels.gated_norm(p, s["z"], w.ssm_norm, s["delta_out"], eps=c.rms_norm_eps)
    kernels.linear(p, s["delta_out"], w.ssm_out, x, add=True)
