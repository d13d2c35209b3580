"""Exact attention rows of a delta net's heads."""

from __future__ import annotations

from dataclasses import dataclass

from vkprefill.engine.kernels.common import check_shapes, lanes_for
from vkprefill.engine.kernels.delta_net import DeltaHeads
from vkprefill.errors import ShapeError
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.program import Program


@dataclass(frozen=True)
class DeltaKeys:
    """What a delta-net layer read of the N tokens from `first` on: k [N, Hk Dk], log_decay and beta [N, Hv]."""

    first: int
    k: Buffer
    log_decay: Buffer
    beta: Buffer


def delta_pattern(
    p: Program, seen: Buffer, q: Buffer, keys: DeltaKeys, w: Buffer, rows: Buffer, heads: DeltaHeads
) -> None:
    """rows[Q, Hv, N] of the queries q[Q, Hk Dk] over a segment of the tokens, each of which looks back on the first
    seen[Q] of all (0: not in use). w[Q, Hv Dk] goes from a segment to the one before; in the end it is what is left of
    the query for the state before the first token. rows may be a host buffer.
    """
    queries, tokens = seen.shape[0], keys.k.shape[0]
    check_shapes(
        "delta_pattern",
        q=(q.shape, (queries, heads.Hk * heads.Dk)),
        k=(keys.k.shape[1:], (heads.Hk * heads.Dk,)),
        log_decay=(keys.log_decay.shape, (tokens, heads.Hv)),
        beta=(keys.beta.shape, (tokens, heads.Hv)),
        w=(w.shape, (queries, heads.Hv * heads.Dk)),
        rows=(rows.shape, (queries, heads.Hv, tokens)),
    )
    if heads.Dk % 4:
        raise ShapeError(f"delta_pattern: key heads of {heads.Dk}, wanted a multiple of 4")
    p.dispatch(
        "delta_pattern",
        [seen, q, keys.k, keys.log_decay, keys.beta, w, rows],
        (heads.Hv, queries, 1),
        constants={
            # a subgroup where it can hold w: sums within one need no barrier
            "LOCAL_SIZE": lanes_for(heads.Dk // 4, p.device.info.subgroup_size),
            "Hk": heads.Hk,
            "Hv": heads.Hv,
            "Dk": heads.Dk,
            "N": tokens,
        },
        push={"first": keys.first},
        work=4.0 * heads.Hv * heads.Dk * queries * tokens,
    )
