"""Softmax attention over the paged cache, with what goes before it and after it."""

from __future__ import annotations

from vkprefill.engine.cache_pool import KVLayer
from vkprefill.engine.halves import HalfRows
from vkprefill.engine.kernels.common import (
    MAX_LOCAL_SIZE,
    ceil_div,
    check_shapes,
    half_lanes,
    half_words,
    lanes_for,
    shuffle_form,
)
from vkprefill.engine.sizes import PAGE
from vkprefill.errors import ShapeError
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.program import Program


def head_norm_rope(p: Program, x: Buffer, weight: Buffer, rope: Buffer, y: Buffer, *, heads: int, eps: float) -> None:
    """y[T, heads, Dh] = rotary(rms_norm(x per head)); x [T, heads * n], each head's Dh values at the start of its n."""
    (head_dim,) = weight.shape
    check_shapes("head_norm_rope", y=(y.shape[1:], (heads * head_dim,)))
    if x.shape[1] % heads or x.shape[1] // heads < head_dim:
        raise ShapeError(f"head_norm_rope: rows of {x.shape[1]} do not hold {heads} heads of {head_dim}")
    p.dispatch(
        "head_norm_rope",
        [p.step, x, weight, rope, y],
        (heads, p.num_rows, 1),
        constants={
            "LOCAL_SIZE": 32,
            "HEADS": heads,
            "Dh": head_dim,
            "R": 2 * rope.shape[1],
            "STRIDE": x.shape[1],
            "HEAD_STRIDE": x.shape[1] // heads,
            "EPS": eps,
        },
        push={"weight_offset": weight.offset},
    )


def kv_store(p: Program, k: Buffer, v: Buffer, pages: Buffer, cache: KVLayer, *, kv_heads: int, kv_type: str) -> None:
    """Append k, v [T, G, Dh] to the cache's pages at slots cache_len + t."""
    check_shapes("kv_store", v=(v.shape[1:], k.shape[1:]))
    words = k.shape[1] // 4
    local = min(words, MAX_LOCAL_SIZE)
    p.dispatch(
        f"kv_store_{kv_type}",
        [p.step, k, v, pages, cache.keys, cache.values],
        (ceil_div(words, local), p.num_rows, 1),
        constants={"LOCAL_SIZE": local, "G": kv_heads, "Dh": k.shape[1] // kv_heads},
    )


def attention(
    p: Program,
    q: Buffer,
    pages: Buffer,
    cache: KVLayer,
    y: Buffer,
    split_out: Buffer,
    split_sums: Buffer,
    *,
    heads: int,
    kv_heads: int,
    scale: float,
    kv_type: str,
) -> None:
    """y[T, H, Dh] = softmax attention of q[T', H, Dh] over all cached keys up to each token's own; T' = T rounded up to
    whole row tiles (memory.ROW_TILE).

    A program of one token splits the keys over workgroups and merges; split_out [splits, H Dh] and split_sums [splits,
    H, 2] hold the parts.
    """
    check_shapes("attention", y=(y.shape[1:], q.shape[1:]))
    head_dim, group = q.shape[1] // heads, heads // kv_heads
    words = head_dim // 4
    form, shuffle = shuffle_form(p)
    most, rows, kp = p.device.profile.attention
    local, tq = max(lanes_for(words, most), shuffle.get("SUBGROUP", 1)), min(rows, p.num_rows * group)
    more = 1 << ((rows // tq).bit_length() - 1)  # fewer rows leave registers for more keys in flight
    kp = min(kp * more, PAGE // local)
    splits = split_out.shape[0] if p.num_rows == 1 else 1
    assert PAGE % (local * kp) == 0, "a tile of keys lies within a page"
    # How much work it is depends on the past, which a recorded program does not know: the model bounds it for one
    # layer, so that in prefill a submission must not hold two. The one query of a decode step is little work at any
    # length.
    work = p.device.profile.submission_flop if p.num_rows > 1 else 0.0
    p.dispatch(
        f"attention{form}_{kv_type}",
        [p.step, q, pages, cache.keys, cache.values, split_out if splits > 1 else y, split_sums],
        (ceil_div(p.num_rows * group, tq), kv_heads, splits),
        constants={
            "LOCAL_SIZE": local,
            "H": heads,
            "G": kv_heads,
            "Dh": head_dim,
            "SCALE": scale,
            "SPLITS": splits,
            "TQ": tq,
            "KP": kp,
            "DV": ceil_div(words, local),
            **shuffle,
        },
        work=work,
    )
    if splits > 1:
        p.dispatch(
            "attention_merge",
            [p.step, split_out, split_sums, y],
            (heads, p.num_rows, 1),
            constants={"LOCAL_SIZE": lanes_for(words, 32), "H": heads, "Dh": head_dim, "SPLITS": splits},
        )


def attention_gate(p: Program, query_gate: Buffer, y: Buffer, *, heads: int, half: HalfRows | None = None) -> None:
    """y[T, H, Dh] *= sigmoid of the gates in query_gate[T, H, 2, Dh]; half: goes there instead, as halves."""
    width, local = y.shape[1], p.device.profile.local_size
    check_shapes("attention_gate", query_gate=(query_gate.shape[1:], (2 * width,)))
    constants = {"LOCAL_SIZE": local, "H": heads, "Dh": width // heads}
    if half is None:
        grid = ceil_div(width // 4, local), p.num_rows, 1
        p.dispatch("attention_gate", [p.step, query_gate, y], grid, constants=constants)
        return
    p.dispatch(
        "attention_gate_half",
        [p.step, query_gate, y, half_words("attention_gate", half, width), half.factors],
        (1, p.num_rows, 1),
        constants=constants | {"LOCAL_SIZE": half_lanes(p, width)},
    )
