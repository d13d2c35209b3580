"""Softmax rows of chosen queries, and their reduction to the importance of each key."""

from __future__ import annotations

from vkprefill.engine.cache_pool import KVLayer
from vkprefill.engine.kernels.common import check_shapes
from vkprefill.rounding import ceil_div
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.program import Program


def attention_rows(
    p: Program,
    q: Buffer,
    chosen: Buffer,
    pages: Buffer,
    cache: KVLayer,
    part: Buffer,
    rows: Buffer,
    *,
    heads: int,
    kv_heads: int,
    scale: float,
    kv_type: str,
    turns: Buffer | None = None,
    softmax: bool = True,
) -> None:
    """rows[j, H, keys] = softmax row of each chosen query of q[T, H, Dh] over the cached keys, zero after the query.

    chosen [Q, 2]: (token of this call, row of `rows`); the step buffer says how many of the Q are in use and how many
    keys a row has. rows may be a host buffer. part [splits, Q, H, 2] is scratch. turns [R / 2, keys, 2], cosine and
    sine for each slot: queries and keys as they were before the rotary. softmax False: the scaled scores before it,
    what comes after the query left as it is.
    """
    splits, most = part.shape[:2]
    stride = rows.shape[2]
    check_shapes(
        "attention_rows",
        chosen=(chosen.shape, (most, 2)),
        part=(part.shape[2:], (heads, 2)),
        rows=(rows.shape[1:2], (heads,)),
    )
    form, buffers, constants = "", [], {}
    if turns is not None:
        check_shapes("attention_rows", turns=(turns.shape[1:], (stride, 2)))
        form, buffers, constants = "_nope", [turns], {"R": 2 * turns.shape[0]}
    local = p.device.profile.local_size
    p.dispatch(
        f"attention_scores{form}_{kv_type}",
        [p.step, q, chosen, pages, cache.keys, rows, part, *buffers],
        (splits, kv_heads, most),
        constants={
            "LOCAL_SIZE": local,
            "HEADS": heads // kv_heads,
            "G": kv_heads,
            "Dh": q.shape[1] // heads,
            "SCALE": scale,
            "SPLITS": splits,
        }
        | constants,
        push={"stride": stride},
        work=2.0 * most * stride * q.shape[1],
    )
    if not softmax:
        return
    p.dispatch(
        "attention_rows",
        [p.step, chosen, part, rows],
        (splits, heads, most),
        constants={"LOCAL_SIZE": local, "H": heads, "SPLITS": splits},
        push={"stride": stride},
    )


def importance(p: Program, rows: Buffer, best: Buffer, *, pool_size: int, first: bool) -> None:
    """best[Q, keys] = max over heads of the pooled rows[Q, H, keys], and of what best holds unless first."""
    check_shapes("importance", best=(best.shape, (rows.shape[0], rows.shape[2])))
    local = p.device.profile.local_size
    p.dispatch(
        "importance",
        [p.step, rows, best],
        (ceil_div(rows.shape[2], local), rows.shape[0], 1),
        constants={"LOCAL_SIZE": local, "H": rows.shape[1], "POOL": pool_size, "FIRST": int(first)},
        push={"stride": rows.shape[2]},
    )


def importance_sum(p: Program, best: Buffer, total: Buffer) -> None:
    """total[keys] += sum over the queries in use of best[Q, keys]."""
    local = p.device.profile.local_size
    p.dispatch(
        "importance_sum",
        [p.step, best, total],
        (ceil_div(best.shape[1], local), 1, 1),
        constants={"LOCAL_SIZE": local},
        push={"stride": best.shape[1]},
    )
