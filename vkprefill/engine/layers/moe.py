"""A mixture's feed-forward: x += sum of share_k * expert_k(h) over the experts that the router chose, and that of the
expert that every token takes; each of them is a SwiGLU, h the normed x (Shazeer et al. 2017, arXiv 1701.06538; Dai et
al. 2024, arXiv 2401.06066).
"""

from __future__ import annotations

from vkprefill.engine import kernels
from vkprefill.engine.halves import SHORT_RUN, half_for
from vkprefill.engine.layers.context import LayerContext
from vkprefill.engine.layers.mlp import gated
from vkprefill.engine.weights import MixtureWeights
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.program import Program


def moe(p: Program, at: LayerContext, w: MixtureWeights) -> None:
    """x[T, D] += the feed-forward of h[T, D]."""
    s, per_token = at.scratch, at.config.experts.per_token[at.index]
    ids, shares = _columns(s.expert_ids, per_token), _columns(s.shares, per_token + 1)
    kernels.linear(p, s.h, w.router, s.router)  # float32 always: another choice is no rounding
    kernels.route(p, s.router, s.h, w.shared_gate, ids, shares)
    tiles = None
    if p.num_rows > SHORT_RUN:
        tiles = kernels.RowTiles.of(p, _columns(s.places, per_token), s.tiles, w.ffn_gate.count)
        kernels.group_rows(p, ids, tiles, w.ffn_gate.count)
        _grouped(p, at, w, tiles)
    else:
        _by_id(p, at, w, ids)
    gated(p, at, w.shared)  # last: where h is held as halves, those of its own products come
    kernels.linear(p, s.ffn_gate, w.shared.ffn_down, s.shared, half=at.half)
    out = at.branch(p, "hook_mlp_out")
    kernels.add_experts(p, s.expert_rows, s.shared, shares, out, ids, tiles)
    at.join(p, out, "hook_mlp_out")


def _by_id(p: Program, at: LayerContext, w: MixtureWeights, ids: Buffer) -> None:
    """Row t K + k of expert_rows = what the k-th expert of token t makes of h[t]: weights are read anew for each row,
    since few rows share an expert.
    """
    s = at.scratch
    gate, up = (_columns(buffer, w.ffn_gate.rows) for buffer in (s.expert_gate, s.expert_up))
    kernels.linear_by_id(p, s.h, w.ffn_gate, ids, gate)
    kernels.linear_by_id(p, s.h, w.ffn_up, ids, up)
    kernels.swiglu(p, up, gate, rows_of_token=ids.shape[1])
    kernels.linear_by_id(p, gate, w.ffn_down, ids, s.expert_rows, own_rows=True)


def _grouped(p: Program, at: LayerContext, w: MixtureWeights, tiles: kernels.RowTiles) -> None:
    """The same, the rows of an expert together: each expert's weights are read once for a tile of them."""
    s, dim, half = at.scratch, at.config.hidden_size, at.half
    rows, halves = s.expert_rows, s.expert_half if half else None
    gate, up = (_columns(buffer, w.ffn_gate.rows) for buffer in (s.expert_gate, s.expert_up))
    of_halves = [half_for(matrix, halves) for matrix in (w.ffn_gate, w.ffn_up)]
    if any(of_halves):
        kernels.gather_rows(p, tiles.places, half, halves, dim)
    if not all(of_halves):
        kernels.gather_rows(p, tiles.places, s.h, rows, dim)
    kernels.expert_linear(p, rows, w.ffn_gate, tiles, gate, half=halves)
    kernels.expert_linear(p, rows, w.ffn_up, tiles, up, half=halves)
    kernels.swiglu(p, up, gate, half_for(w.ffn_down, halves), rows_of_token=tiles.per_token)
    kernels.expert_linear(p, gate, w.ffn_down, tiles, s.expert_rows, half=halves)


def _columns(buffer: Buffer, columns: int) -> Buffer:
    """A buffer that layers of other sizes share, as rows of so many columns: as many as this layer needs fit."""
    return buffer.part(buffer.label, 0, (buffer.shape[0], columns))
