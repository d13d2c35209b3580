"""Full attention with an output gate: grouped queries, head norms, partial rotary, causal softmax over the cache."""

from __future__ import annotations

from collections.abc import Callable

from vkprefill.engine import kernels
from vkprefill.engine.halves import half_for
from vkprefill.engine.layers.context import LayerContext
from vkprefill.engine.points import whole_rows
from vkprefill.engine.weights import AttentionWeights
from vkprefill.vulkan.program import Program


def attention(
    p: Program,
    at: LayerContext,
    w: AttentionWeights,
    *,
    tap: Callable[[Program, int], None] | None = None,
    rows_only: bool = False,
) -> None:
    """x[T, D] += attention of h[T, D]; appends this call's keys and values to the cache.

    tap(p, layer) is called once queries and keys are in place, to record what reads them, in float32. rows_only:
    nothing after that, and no values.
    """
    c, s, pool, half = at.config, at.scratch, at.pool, at.half
    heads, kv_heads = c.num_attention_heads, c.num_key_value_heads
    kernels.linear(p, s.h, w.attn_q, s.query_gate, half=half)  # [T, H, 2, Dh]: query and gate of each head
    at.point(p, "attn.hook_q", whole_rows(s.query_gate).part(0, heads, c.head_dim, 2 * c.head_dim))
    append_keys_values(p, at, w, values=not rows_only)
    # Where the rounded queries go, in place of h, which is no longer read; a float32 cache keeps float32 products.
    half_query = half if pool.kv_type == "f16" and not rows_only else None
    if half_query:
        place = {"heads": heads, "eps": c.rms_norm_eps, "scale": c.attention_scale}
        kernels.half_queries(p, s.query_gate, w.attn_q_norm, s.rope, half_query, **place)
    if tap or not half_query:
        kernels.head_norm_rope(p, s.query_gate, w.attn_q_norm, s.rope, s.query, heads=heads, eps=c.rms_norm_eps)
    for name in ("rot_q", "attn_scores", "pattern"):  # of the latter two, what they are made of
        at.point(p, f"attn.hook_{name}", whole_rows(s.query, heads))
    kv = pool.kv[at.index]
    if tap:
        tap(p, at.index)
    if rows_only:
        return
    kernels.attention(
        p,
        s.query,
        at.pages,
        kv,
        s.attended,
        s.split_out,
        s.split_sums,
        heads=heads,
        kv_heads=kv_heads,
        scale=c.attention_scale,
        kv_type=pool.kv_type,
        half=half_query,
    )
    kernels.attention_gate(p, s.query_gate, s.attended, heads=heads, half=half_for(w.attn_output, half))
    at.point(p, "attn.hook_z", whole_rows(s.attended, heads))
    out = at.branch(p, "hook_attn_out")
    kernels.linear(p, s.attended, w.attn_output, out, add=True, half=half)
    at.join(p, out, "hook_attn_out")


def append_keys_values(p: Program, at: LayerContext, w: AttentionWeights, *, values: bool = True) -> None:
    """Keys and values of h[T, D] to the cache; values False: the keys are enough."""
    c, s, pool, half = at.config, at.scratch, at.pool, at.half
    heads = c.num_key_value_heads
    kernels.linear(p, s.h, w.attn_k, s.key_raw, half=half)
    at.point(p, "attn.hook_k", whole_rows(s.key_raw, heads))
    if values:
        kernels.linear(p, s.h, w.attn_v, s.value, half=half)
        at.point(p, "attn.hook_v", whole_rows(s.value, heads))
    kernels.head_norm_rope(p, s.key_raw, w.attn_k_norm, s.rope, s.key, heads=heads, eps=c.rms_norm_eps)
    at.point(p, "attn.hook_rot_k", whole_rows(s.key, heads))
    kernels.kv_store(p, s.key, s.value, at.pages, pool.kv[at.index], kv_heads=heads, kv_type=pool.kv_type)
