"""The buffers that a forward pass works in. Layers share them, since each runs after the one before has ended."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from vkprefill.engine.expert_matrix import most_tiles
from vkprefill.engine.halves import SHORT_RUN, HalfRows
from vkprefill.engine.sizes import DRAFT_CANDIDATES, MAX_CANDIDATES, MAX_DRAFT_IDS, MAX_DRAFTS, Sizes
from vkprefill.engine.step import STEP_WORDS
from vkprefill.rounding import ceil_div
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.device import Device


@dataclass(frozen=True)
class Scratch:
    """Everything a step writes but caches and states. Letters as in ARCHITECTURE.md; T rows, in whole tiles.

    What belongs to a kind of layer that the model does not have, or to halves in full precision, is None.
    """

    step: Buffer  # uint32 [STEP_WORDS], see StepWord
    token_ids: Buffer  # uint32 [T]
    rope: Buffer  # [T, R / 2, 2], cosine and sine
    x: Buffer  # [T, D], the residual stream
    h: Buffer  # [T, D], x normed
    ffn_gate: Buffer  # [T, F]
    ffn_up: Buffer  # [T, F]
    logits: Buffer  # [SHORT_RUN, V], of the first rows
    seen: Buffer  # uint32 [V / 32], a bit for each token that the penalty applies to
    allowed: Buffer  # uint32 [1 + SHORT_RUN V / 32]: whether it counts, then for each row the tokens it may choose from
    block_best: Buffer  # uint32 [SHORT_RUN, V / 64, 2]
    candidates: Buffer  # uint32 [SHORT_RUN, MAX_CANDIDATES, 2]: bits of the logit, token id

    # products of halves
    halves: Buffer | None = None  # uint32 [T, widest input of a product / 2], two in a word
    half_factors: Buffer | None = None  # [T]

    # full attention
    query_gate: Buffer | None = None  # [T, H, 2, Dh]
    query: Buffer | None = None  # [T, H Dh]
    key_raw: Buffer | None = None  # [T, G Dh], before norm and rotary
    key: Buffer | None = None  # [T, G Dh]
    value: Buffer | None = None  # [T, G Dh]
    attended: Buffer | None = None  # [T, H Dh]
    split_out: Buffer | None = None  # [splits, SHORT_RUN, H Dh]
    split_sums: Buffer | None = None  # [splits, SHORT_RUN, H, 2]

    # delta net
    qkv_raw: Buffer | None = None  # [T, C], before the convolution
    qkv: Buffer | None = None  # [T, C]
    z: Buffer | None = None  # [T, Hv Dv]
    alpha: Buffer | None = None  # [T, Hv]
    beta: Buffer | None = None  # [T, Hv]
    gates: Buffer | None = None  # [T, Hv, 2]
    delta_out: Buffer | None = None  # [T, Hv Dv]

    # mixtures: K the most experts of a token, X of a layer, S rows of all tokens together, T K and a tile more
    # (T + 1: drivers read the three words of a last row as four)
    router: Buffer | None = None  # [T, X]
    expert_ids: Buffer | None = None  # uint32 [T + 1, K]
    shares: Buffer | None = None  # [T + 1, K + 1], of the expert that every token takes too
    places: Buffer | None = None  # uint32 [T + 1, K], see shaders/experts/group_rows.comp
    tiles: Buffer | None = None  # uint32 [most, 4]
    expert_rows: Buffer | None = None  # [S, D], what experts read, then what they make of it
    expert_gate: Buffer | None = None  # [S, F]
    expert_up: Buffer | None = None  # [S, F]
    shared: Buffer | None = None  # [T, D], of the expert that every token takes
    expert_halves: Buffer | None = None  # uint32 [S, widest input of a product / 2]
    expert_factors: Buffer | None = None  # [S]

    # multi-token prediction
    mtp_pair: Buffer | None = None  # [T, 2 D]: normed embedding beside the normed hidden row
    mtp_x: Buffer | None = None  # [T, D], the block's residual stream
    mtp_hidden: Buffer | None = None  # [1, D], after the block's last norm
    draft_ids: Buffer | None = None  # uint32 [MAX_DRAFT_IDS], tokens beyond the first rows of the head
    drafts: Buffer | None = None  # uint32 [MAX_DRAFTS, DRAFT_CANDIDATES, 2]: bits of the logit, token id

    @classmethod
    def allocate(cls, device: Device, sizes: Sizes) -> Scratch:
        """Raises OutOfMemoryError."""
        return cls(
            **{
                name: device.buffer(name, shape, dtype, memory=PLACES[place][0], kind=PLACES[place][1])
                for name, (shape, dtype, place) in scratch_shapes(sizes).items()
            }
        )

    @property
    def half(self) -> HalfRows | None:
        """Room for what products of halves read, one input after another."""
        return HalfRows(self.halves, self.half_factors) if self.halves is not None else None

    @property
    def expert_half(self) -> HalfRows | None:
        """The same for the rows of experts."""
        return HalfRows(self.expert_halves, self.expert_factors) if self.expert_halves is not None else None

    def buffers(self) -> Iterator[Buffer]:
        """Those that are there."""
        return (buffer for field in fields(self) if (buffer := getattr(self, field.name)) is not None)


Shape = tuple[tuple[int, ...], type, str]
# Place -> (memory, kind of the memory bill).
PLACES = {"device": ("device", "activations"), "host": ("host", "exchange"), "mtp": ("device", "mtp")}


def scratch_shapes(sizes: Sizes) -> dict[str, Shape]:
    """Field of Scratch -> (shape, dtype, one of PLACES)."""
    c, rows, splits = sizes.config, sizes.rows, sizes.profile.attention_splits

    def floats(*shape: int) -> Shape:
        return shape, np.float32, "device"

    def words(*shape: int) -> Shape:
        return shape, np.uint32, "device"

    def on_host(shape: Shape) -> Shape:
        return *shape[:2], "host"

    def of_mtp(shape: Shape) -> Shape:
        return *shape[:2], "mtp"

    shapes = {
        "step": on_host(words(STEP_WORDS)),
        "token_ids": on_host(words(rows)),
        "rope": on_host(floats(rows, max(1, c.rotary_dim // 2), 2)),
        "x": floats(rows, c.hidden_size),
        "h": floats(rows, c.hidden_size),
        "ffn_gate": floats(rows, c.intermediate_size),
        "ffn_up": floats(rows, c.intermediate_size),
        "logits": on_host(floats(SHORT_RUN, c.vocab_size)),
        "seen": on_host(words(ceil_div(c.vocab_size, 32))),
        "allowed": on_host(words(1 + SHORT_RUN * ceil_div(c.vocab_size, 32))),
        "block_best": words(SHORT_RUN, ceil_div(c.vocab_size, 64), 2),
        "candidates": on_host(words(SHORT_RUN, MAX_CANDIDATES, 2)),
    }
    if sizes.half:
        widest = max(
            c.hidden_size,
            c.intermediate_size,
            c.q_dim if c.attention_layers else 0,
            c.linear_value_dim if c.linear_layers else 0,
            2 * c.hidden_size if sizes.block else 0,
        )
        shapes |= {"halves": words(rows, widest // 2), "half_factors": floats(rows)}
    if c.attention_layers:
        shapes |= {
            "query_gate": floats(rows, 2 * c.q_dim),
            "query": floats(rows, c.q_dim),
            "key_raw": floats(rows, c.kv_dim),
            "key": floats(rows, c.kv_dim),
            "value": floats(rows, c.kv_dim),
            "attended": floats(rows, c.q_dim),
            "split_out": floats(splits, SHORT_RUN, c.q_dim),
            "split_sums": floats(splits, SHORT_RUN, c.num_attention_heads, 2),
        }
    if c.linear_layers:
        shapes |= {
            "qkv_raw": floats(rows, c.conv_dim),
            "qkv": floats(rows, c.conv_dim),
            "z": floats(rows, c.linear_value_dim),
            "alpha": floats(rows, c.linear_num_value_heads),
            "beta": floats(rows, c.linear_num_value_heads),
            "gates": floats(rows, c.linear_num_value_heads, 2),
            "delta_out": floats(rows, c.linear_value_dim),
        }
    if c.experts:
        shapes |= _expert_shapes(sizes)
    if sizes.block:
        shapes |= {
            "mtp_pair": of_mtp(floats(rows, 2 * c.hidden_size)),
            "mtp_x": of_mtp(floats(rows, c.hidden_size)),
            "mtp_hidden": of_mtp(floats(1, c.hidden_size)),
            "draft_ids": on_host(words(MAX_DRAFT_IDS)),
            "drafts": on_host(words(MAX_DRAFTS, DRAFT_CANDIDATES, 2)),
        }
    return shapes


def _expert_shapes(sizes: Sizes) -> dict[str, Shape]:
    c, rows, experts = sizes.config, sizes.rows, sizes.config.experts
    per_token, tile = max(experts.per_token), sizes.profile.expert_rows
    dim, width = c.hidden_size, max(experts.sizes)
    places = rows * per_token
    shapes = {
        "router": ((rows, experts.count), np.float32),
        "expert_ids": ((rows + 1, per_token), np.uint32),
        "shares": ((rows + 1, per_token + 1), np.float32),
        "places": ((rows + 1, per_token), np.uint32),
        "tiles": ((most_tiles(places, experts.count, tile), 4), np.uint32),
        "expert_rows": ((places + tile, dim), np.float32),
        "expert_gate": ((places + tile, width), np.float32),
        "expert_up": ((places + tile, width), np.float32),
        "shared": ((rows, c.hidden_size), np.float32),
    }
    if sizes.half:
        shapes["expert_halves"] = (places + tile, max(dim, width) // 2), np.uint32
        shapes["expert_factors"] = (places + tile,), np.float32
    return {name: (*shape, "device") for name, shape in shapes.items()}


def scratch_bytes(sizes: Sizes, place: str) -> int:
    """Of what lies at one of PLACES."""
    return sum(4 * math.prod(shape) for shape, _, where in scratch_shapes(sizes).values() if where == place)
