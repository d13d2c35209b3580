"""Attention rows of chosen queries: softmax rows, which a shader writes to host-visible memory while attention stays
fused, and rows of delta-net layers (engine/delta_capture.py).

RowTap is the device side, which speculative prefill uses too; AttentionCapture is what a caller passes to Model.prefill
and decode.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from vkprefill.engine import kernels
from vkprefill.engine.cache import Cache
from vkprefill.engine.delta_capture import DeltaCapture, checked_delta_layers
from vkprefill.engine.runner import Runner
from vkprefill.engine.sizes import PAGE
from vkprefill.engine.step import StepWord
from vkprefill.errors import RequestError
from vkprefill.gguf.config import ModelConfig
from vkprefill.rounding import round_up
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.program import Program


class RowTap:
    """Which queries of a run have their rows written, and where to.

    A run takes at most `most` queries; `choose` says which tokens of the run they are and which row of the target each
    fills.
    """

    def __init__(self, runner: Runner, most: int, kind: str) -> None:
        self._runner, self.most = runner, most
        device = runner.device
        self._chosen = device.buffer("chosen_queries", (most, 2), np.uint32, memory="host", kind=kind)
        self._part = device.buffer("row_sums", self._part_shape(runner, most), kind=kind)

    @staticmethod
    def _part_shape(runner: Runner, most: int) -> tuple[int, ...]:
        return max(1, runner.device.profile.attention_splits), most, runner.config.num_attention_heads, 2

    @classmethod
    def num_bytes(cls, runner: Runner, most: int) -> int:
        """What one takes."""
        return 4 * (2 * most + math.prod(cls._part_shape(runner, most)))

    def choose(self, tokens: Sequence[int], rows: Sequence[int], num_keys: int) -> None:
        """tokens[i] of the next run fills row rows[i] of the target with num_keys keys, those after the token zero."""
        self._chosen.view()[: len(tokens)] = np.stack([tokens, rows], axis=-1)
        self._runner.step.set_words({StepWord.NUM_QUERIES: len(tokens), StepWord.NUM_KEYS: num_keys})

    def record(
        self, p: Program, layer: int, rows: Buffer, turns: Buffer | None = None, *, softmax: bool = True
    ) -> None:
        """rows[j, H, keys] of this layer's queries; while the layer is being recorded. turns: of queries and keys
        before the rotary; softmax: see attention_rows.
        """
        c, pool = self._runner.config, self._runner.pool
        kernels.attention_rows(
            p,
            self._runner.scratch.query,
            self._chosen,
            pool.page_table,
            pool.kv[layer],
            self._part,
            rows,
            heads=c.num_attention_heads,
            kv_heads=c.num_key_value_heads,
            scale=c.attention_scale,
            kv_type=pool.kv_type,
            turns=turns,
            softmax=softmax,
        )

    def free(self) -> None:
        self._chosen.free()
        self._part.free()


def checked_layers(layers: Sequence[int] | None, config: ModelConfig, name: str = "layers") -> tuple[int, ...]:
    """Full-attention layers in rising order; None for all. RequestError for a layer without attention rows; name: what
    it begins with.
    """
    chosen = config.attention_layers if layers is None else tuple(sorted(set(layers)))
    for layer in chosen:
        if layer not in config.attention_layers:
            raise RequestError(
                f"{name}: {layer} has no attention rows, wanted some of {', '.join(map(str, config.attention_layers))}"
            )
    if not chosen:
        raise RequestError(f"{name}: none given, wanted at least one full-attention layer")
    return chosen


class AttentionCapture:
    """Attention rows of a call. Filled anew by each call it is passed to; Q queries, S keys in the cache.

    layers: indices of full-attention layers (None: all, () with delta_layers: none); delta_layers: of delta-net layers
    (None: all); queries: tokens of the call, negative from its end (None: all of them: Q S H floats a layer; of a
    prompt of 20,000 tokens and 16 heads that is 25.6 GB, so choose). decode has one query, its token.

    Filled in:
        pattern: layer -> float32 [H, Q, S], softmax rows: they sum to 1, and are 0 after the query.
        delta_pattern, delta_rest: layer -> float32 [Hv, Q, S], [Hv, Q, Dv], exact: with the values v of its tokens,
        delta_pattern v + delta_rest is what the layer's delta rule gives. The numbers have signs and do not sum to 1.
        Tokens of calls that the capture was passed to one after the other are in delta_pattern, for their keys are
        kept (4 (Hk Dk + 2 Hv) bytes of the device for each and layer); columns before them are 0, and all that they
        give is in delta_rest.
        attentions: one for each layer of the model, float32 [1, H, Q, S], None where there is none.
        query_positions: int64 [Q]; key_positions: int64 [S]; token_ids: int64 [S], of the keys.
    """

    def __init__(
        self,
        layers: Sequence[int] | None = None,
        queries: Sequence[int] | None = (-1,),
        delta_layers: Sequence[int] | None = (),
    ) -> None:
        self.layers = layers
        self.queries = queries
        self.delta_layers = delta_layers
        self.pattern: dict[int, np.ndarray] = {}
        self.delta_pattern: dict[int, np.ndarray] = {}
        self.delta_rest: dict[int, np.ndarray] = {}
        self.attentions: tuple[np.ndarray | None, ...] = ()
        self.query_positions = self.key_positions = self.token_ids = np.zeros(0, np.int64)
        self._recorder: CaptureRecorder | None = None
        self._delta: DeltaCapture | None = None

    def recorder_for(self, runner: Runner, cache: Cache, queries: np.ndarray, num_tokens: int) -> CaptureRecorder:
        """What records the rows of a call of num_tokens, of its tokens `queries`: that of the call before if it
        suffices, else a new one in its place.
        """
        delta_layers = checked_delta_layers(self.delta_layers, runner.config)
        layers = () if delta_layers and self._none_of_softmax() else checked_layers(self.layers, runner.config)
        num_keys, most = len(cache) + num_tokens, min(len(queries), runner.sizes.prefill_chunk)
        if self._delta is not None and not self._delta.fits(runner, delta_layers):
            self._drop_recorder()
            self._delta.free()
            self._delta = None
        if self._recorder is not None and not self._recorder.fits(runner, layers, len(queries), most, num_keys):
            self._drop_recorder()
        if self._delta is None and delta_layers:
            self._drop_recorder()
            self._delta = DeltaCapture(runner, delta_layers)
        if self._recorder is None:
            self._recorder = CaptureRecorder(runner, layers, len(queries), most, num_keys, self._delta)
        if self._delta is not None:
            self._delta.begin(cache, num_tokens, len(queries))
        self._recorder.begin(queries, num_keys)
        return self._recorder

    def _none_of_softmax(self) -> bool:
        return self.layers is not None and not len(self.layers)

    def _drop_recorder(self) -> None:
        if self._recorder is not None:
            self._recorder.free()
            self._recorder = None

    def fill(self, recorder: CaptureRecorder, cache: Cache, query_slots: np.ndarray) -> None:
        """Copy the rows out of a recorder. query_slots: the cache slots of the queries."""
        num_keys = len(cache)
        self.pattern = {layer: recorder.read(layer, len(query_slots), num_keys) for layer in recorder.layers}
        self.attentions = tuple(
            self.pattern[layer][None] if layer in self.pattern else None for layer in range(recorder.num_layers)
        )
        self.delta_pattern, self.delta_rest = ({}, {}) if self._delta is None else self._delta.end(cache)
        self.key_positions = np.array(cache.positions, np.int64)
        self.query_positions = self.key_positions[query_slots]
        self.token_ids = np.array(cache.token_ids, np.int64)


class CaptureRecorder:
    """The buffers and programs behind an AttentionCapture, for up to num_queries queries and `stride` keys; kept while
    they suffice.
    """

    def __init__(
        self,
        runner: Runner,
        layers: tuple[int, ...],
        num_queries: int,
        most: int,
        num_keys: int,
        delta: DeltaCapture | None = None,
    ) -> None:
        config, device = runner.config, runner.device
        self.layers, self.num_queries, self.num_layers = layers, num_queries, config.num_hidden_layers
        self.stride = round_up(num_keys, PAGE)
        heads = config.num_attention_heads
        layer_bytes = num_queries * heads * self.stride * 4
        what = f"attention capture of {num_queries} queries, {heads} heads, {num_keys} keys in {len(layers)} layers"
        if layers and layer_bytes > device.info.max_buffer_bytes:
            raise RequestError(
                f"{what}: {layer_bytes / 2**20:,.0f} MiB for a layer, {device.info.name} allows "
                f"{device.info.max_buffer_bytes / 2**20:,.0f} MiB; take fewer queries"
            )
        device.require(0, what, host_bytes=layer_bytes * len(layers))
        self._runner, self._most, self._delta = runner, most, delta
        self._programs: dict[tuple[int, bool], Program] = {}
        self._rows: dict[int, Buffer] = {}
        with device.freed_on_error():
            self._tap = RowTap(runner, most, "capture") if layers else None
            for layer in layers:
                self._rows[layer] = device.buffer(
                    f"L{layer:02d}.rows", (num_queries, heads, self.stride), memory="host", kind="capture"
                )

    def fits(self, runner: Runner, layers: tuple[int, ...], num_queries: int, most: int, num_keys: int) -> bool:
        room = not layers or num_queries <= self.num_queries and most <= self._most and num_keys <= self.stride
        return runner is self._runner and layers == self.layers and room

    def begin(self, queries: np.ndarray, num_keys: int) -> None:
        """A call: its tokens `queries` [Q] fill the rows in this order."""
        self._queries, self._num_keys = queries, num_keys

    def prefill_program(self, first: int, count: int) -> Program:
        """Of `count` tokens of the call, from `first` on."""
        (rows,) = np.nonzero((self._queries >= first) & (self._queries < first + count))
        if not len(rows) and self._delta is None:
            return self._runner.plain_program(count)
        return self._program(self._runner.sizes.rows, first, count, rows)

    def decode_program(self) -> Program:
        return self._program(1, 0, 1, np.zeros(1, np.int64))

    def _program(self, num_rows: int, first: int, count: int, rows: np.ndarray) -> Program:
        """The trunk for up to num_rows tokens with what rows[n] of the results need of it."""
        tokens, forward = self._queries[rows] - first, self._runner.forward
        tapped = self._tap is not None and len(rows) > 0
        if tapped:
            self._tap.choose(tokens, rows, self._num_keys)
        if self._delta is not None:
            self._delta.choose(first, count, tokens, rows)
        if (num_rows, tapped) not in self._programs:
            record = forward.record_rows if num_rows == 1 else forward.record_trunk
            p = record("capture", num_rows, self._record if tapped else None, watch=self._delta)
            if self._delta is not None:
                self._delta.finish(p)
            self._programs[num_rows, tapped] = p
        return self._programs[num_rows, tapped]

    def _record(self, p: Program, layer: int) -> None:
        if layer in self._rows:
            self._tap.record(p, layer, self._rows[layer])

    def read(self, layer: int, num_queries: int, num_keys: int) -> np.ndarray:
        """float32 [H, Q, S]: one pass over host-visible memory, which may be slow to read."""
        return self._rows[layer].view()[:num_queries, :, :num_keys].transpose(1, 0, 2).copy()

    def free(self) -> None:
        """Dropping the capture does this too; freeing twice does nothing."""
        self._programs.clear()
        if self._tap is not None:
            self._tap.free()
        for rows in self._rows.values():
            rows.free()


def query_indices(queries: Sequence[int] | None, num_tokens: int) -> np.ndarray:
    """Non-negative indices int64 [Q] of the chosen tokens of a call, in the caller's order."""
    if queries is None:
        return np.arange(num_tokens)
    indices = np.asarray(queries)
    if indices.ndim != 1 or not len(indices) or indices.dtype.kind not in "iu":
        raise RequestError(f"queries: found {queries!r}, wanted at least one token index")
    if (bad := indices[(indices < -num_tokens) | (indices >= num_tokens)]).size:
        raise RequestError(f"queries: found {bad[0]}, wanted -{num_tokens} to {num_tokens - 1}, a token of this call")
    indices = np.where(indices < 0, indices + num_tokens, indices).astype(np.int64)
    if len(np.unique(indices)) < len(indices):
        raise RequestError(f"queries: found token {np.bincount(indices).argmax()} more than once, wanted each once")
    return indices
