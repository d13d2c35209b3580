"""Softmax attention over the paged cache, with what goes before it and after it."""

from __future__ import annotations

import math

from vkprefill.engine.cache_pool import KVLayer
from vkprefill.engine.halves import SHORT_RUN, HalfRows
from vkprefill.engine.kernels.common import (
    MAX_LOCAL_SIZE,
    check_shapes,
    half_lanes,
    half_words,
    lanes_for,
    shuffle_form,
)
from vkprefill.engine.sizes import PAGE
from vkprefill.errors import ShapeError
from vkprefill.rounding import ceil_div
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.program import Program


def head_norm_rope(p: Program, x: Buffer, weight: Buffer, rope: Buffer, y: Buffer, *, heads: int, eps: float) -> None:
    """y[T, heads, Dh] = rotary(rms_norm(x per head)); x [T, heads * n], each head's Dh values at the start of its n."""
    check_shapes("head_norm_rope", y=(y.shape[1:], (heads * weight.shape[0],)))
    constants = _head_constants(x, weight, rope, heads, eps)
    buffers, push = [p.step, x, weight, rope, y], {"weight_offset": weight.offset}
    p.dispatch("head_norm_rope", buffers, (heads, p.num_rows, 1), constants=constants, push=push)


def half_queries(
    p: Program, x: Buffer, weight: Buffer, rope: Buffer, half: HalfRows, *, heads: int, eps: float, scale: float
) -> None:
    """half = scale * rotary(rms_norm(x per head)) as halves [T, heads, Dh], for attention; x as for head_norm_rope."""
    words = half_words("half_queries", half, heads * weight.shape[0])
    constants = _head_constants(x, weight, rope, heads, eps) | {"FACTOR": scale}
    buffers, push = [p.step, x, weight, rope, words], {"weight_offset": weight.offset}
    p.dispatch("head_norm_rope_half", buffers, (heads, p.num_rows, 1), constants=constants, push=push)


def _head_constants(x: Buffer, weight: Buffer, rope: Buffer, heads: int, eps: float) -> dict[str, float]:
    (head_dim,) = weight.shape
    if x.shape[1] % heads or x.shape[1] // heads < head_dim:
        raise ShapeError(f"head_norm_rope: rows of {x.shape[1]} do not hold {heads} heads of {head_dim}")
    return {
        "LOCAL_SIZE": 32,
        "HEADS": heads,
        "Dh": head_dim,
        "R": 2 * rope.shape[1],
        "STRIDE": x.shape[1],
        "HEAD_STRIDE": x.shape[1] // heads,
        "EPS": eps,
    }


def kv_store(p: Program, k: Buffer, v: Buffer, pages: Buffer, cache: KVLayer, *, kv_heads: int, kv_type: str) -> None:
    """Append k, v [T, G, Dh] to the cache's pages at slots cache_len + t."""
    check_shapes("kv_store", v=(v.shape[1:], k.shape[1:]))
    words = k.shape[1] // 4
    local = min(words, MAX_LOCAL_SIZE)
    p.dispatch(
        f"kv_store_{kv_type}",
        [p.step, k, v, pages, cache.keys, cache.values],
        (ceil_div(words, local), p.num_rows // 2 + 1 if kv_type == "f16" else p.num_rows, 1),
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
    half: HalfRows | None = None,
) -> None:
    """y[T, H, Dh] = softmax attention of q[T', H, Dh] over all cached keys up to each token's own; T' = T rounded up to
    whole row tiles (memory.ROW_TILE). half: has the queries (half_queries), and products are of halves; the cache is of
    halves and the rows are more than few.

    A program of few rows splits the keys over workgroups and merges; split_out [splits, SHORT_RUN, H Dh] and split_sums
    [splits, SHORT_RUN, H, 2] hold the parts. It sums in one order for each row, whatever the number of rows.
    """
    check_shapes("attention", y=(y.shape[1:], q.shape[1:]))
    few = p.num_rows <= SHORT_RUN
    assert half is None or kv_type == "f16" and not few
    tile = _few_rows_tile(p, q.shape[1] // heads) if few else _tile(p, q.shape[1] // heads)
    rows = p.num_rows * (heads // kv_heads)
    tile |= {"TQ": min(tile["TQ"], rows)}
    keys, splits = tile["LOCAL_SIZE"] * tile["KP"], split_out.shape[0] if few else 1
    assert PAGE % keys == 0, "a tile of keys lies within a page"
    # How much work it is depends on the past, which a recorded program does not know: the model bounds it for one
    # layer, so that in prefill a submission must not hold two. The queries of few rows are little work at any length.
    work = 0.0 if few else p.device.profile.submission_flop
    constants = {"H": heads, "G": kv_heads, "Dh": q.shape[1] // heads, "SCALE": scale, "SPLITS": splits}
    if half is None:
        form, shuffle = shuffle_form(p)
        shader = f"attention{form}_{kv_type}"
    else:
        q, shuffle = half_words("attention", half, q.shape[1]), {}
        # In the instruction's form as many lanes of a subgroup hand a word on.
        enough = min(tile["LOCAL_SIZE"], p.device.info.min_subgroup_size) >= 2 * tile["TQ"]
        shader = "attention_dot2" if p.device.abilities.has_dot2 and enough else "attention_half"
    p.dispatch(
        shader,
        [p.step, q, pages, cache.keys, cache.values, split_out if splits > 1 else y, split_sums],
        (ceil_div(rows, tile["TQ"]), kv_heads, splits),
        constants={**tile, **constants, **shuffle},
        work=work,
    )
    if splits > 1:
        local = lanes_for(q.shape[1] // heads, 32)
        p.dispatch(
            "attention_merge",
            [p.step, split_out, split_sums, y],
            (ceil_div(q.shape[1] // heads, local), heads, p.num_rows),
            constants={"LOCAL_SIZE": local, "H": heads, "Dh": constants["Dh"], "SPLITS": splits, "TILE": keys},
        )


def _tile(p: Program, head_dim: int) -> dict[str, int]:
    """Sizes of attention's tiles in prefill."""
    most, rows, keys = p.device.profile.attention
    local = _lanes(p, head_dim // 4, most)
    words = ceil_div(head_dim // 4, local)
    return {
        "LOCAL_SIZE": local,
        "TQ": rows,
        "KP": min(keys, PAGE // local),
        "DV": words,
        "KEY_WORDS": 1,
        "VALUE_KEYS": 4,
    }


def _few_rows_tile(p: Program, head_dim: int) -> dict[str, int]:
    """Those for few rows, where memory binds: few sums, so that registers are left for loads on their way."""
    rows, keys, loads = p.device.profile.attention_few
    local = _lanes(p, head_dim // 4, p.device.profile.attention[0])
    keys, words = min(keys, PAGE // local), ceil_div(head_dim // 4, local)
    key_words = math.gcd(head_dim // 4, max(1, loads // keys))
    value_keys = math.gcd(local * keys, 4 * max(1, loads // (4 * words)))
    return {
        "LOCAL_SIZE": local,
        "TQ": rows,
        "KP": keys,
        "DV": words,
        "KEY_WORDS": key_words,
        "VALUE_KEYS": value_keys,
    }


def _lanes(p: Program, words: int, most: int) -> int:
    """Invocations of a workgroup for heads of so many words of four values: whole subgroups where shuffles are used."""
    return max(lanes_for(words, most), shuffle_form(p)[1].get("SUBGROUP", 1))


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
