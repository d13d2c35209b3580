"""Exact attention rows of delta-net heads, of chosen queries.

A row goes backwards from its query over all tokens before it (kernels.delta_pattern), so what the delta rule read of
them, keys, log decays and strengths in float32, stays on the device while a capture is passed from call to call: the
window. What was in the state before it began is the rest.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from vkprefill.engine import kernels
from vkprefill.engine.cache import Cache
from vkprefill.engine.kernels.rows import NO_ROW
from vkprefill.engine.points import Rows
from vkprefill.engine.runner import Runner
from vkprefill.engine.sizes import PAGE
from vkprefill.errors import RequestError
from vkprefill.gguf.config import ModelConfig
from vkprefill.rounding import round_up
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.host_memory import require_ram
from vkprefill.vulkan.program import Program

KIND = "capture"  # in the device's accounts
POINTS = "q", "k", "log_decay", "beta"  # that a layer announces, the last one last
# Of a dispatch, which is a submission: some 0.5 GFLOP with 32 heads of 128, milliseconds of a small GPU.
SEGMENT, QUERIES = 1024, 32  # most tokens and queries


def checked_delta_layers(layers: Sequence[int] | None, config: ModelConfig) -> tuple[int, ...]:
    """Delta-net layers in rising order; None for all. RequestError for a layer that is none."""
    chosen = config.linear_layers if layers is None else tuple(sorted(set(layers)))
    for layer in chosen:
        if layer not in config.linear_layers:
            raise RequestError(
                f"delta_layers: {layer} is no delta-net layer, wanted some of "
                f"{', '.join(map(str, config.linear_layers)) or 'none: the model has none'}"
            )
    return tuple(chosen)


@dataclass
class Window:
    """Tokens of a cache from slot `start` on, `length` of them known; ids, positions: of all the cache's tokens then;
    before: layer -> its state float32 [Hv, Dk, Dv] at the start, empty where that is the beginning.
    """

    cache: weakref.ref[Cache]
    start: int
    before: dict[int, np.ndarray]
    states_set: object | None  # see Cache
    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        return len(self.ids) - self.start

    def goes_on_in(self, cache: Cache) -> bool:
        """Whether the cache holds tokens of the window and no others after its start, and nobody set its states."""
        count = len(cache)
        return (
            self.cache() is cache
            and self.states_set is cache.states_set
            and self.start <= count <= len(self.ids)
            and cache.token_ids == self.ids[:count]
            and cache.positions == self.positions[:count]
        )

    def note(self, cache: Cache) -> None:
        """What the cache holds now is known."""
        self.ids, self.positions = list(cache.token_ids), list(cache.positions)


@dataclass(frozen=True)
class Segment:
    """What the layers read of `tokens` tokens of the window, from `first` on."""

    first: int
    tokens: int
    keys: dict[int, kernels.DeltaKeys]


class DeltaCapture:
    """The device side: a watch of the layers' points, segments of the window, what works rows out of them.

    Before a call: `begin`; before each of its runs: `choose`; after it: `end`.
    """

    full = False  # what the delta rule reads is float32 in any case

    def __init__(self, runner: Runner, layers: tuple[int, ...]) -> None:
        self.layers, self._runner = layers, runner
        self._heads = heads = kernels.DeltaHeads.of(runner.config)
        self._names = {
            f"blocks.{layer}.linear_attn.hook_{point}": (layer, point) for layer in layers for point in POINTS
        }
        self._found: dict[str, Rows] = {}
        self._late: list[tuple[int, dict[str, Rows], int]] = []  # arguments of _take
        self._window: Window | None = None
        self._segments: list[Segment] = []
        self._programs: dict[tuple, Program] = {}
        self._pattern: dict[int, np.ndarray] = {}
        self._rest: dict[int, np.ndarray] = {}
        device = runner.device
        with device.freed_on_error():
            self._places = device.buffer("token places", (runner.sizes.rows,), np.uint32, memory="host", kind=KIND)
            self._seen = device.buffer("tokens seen", (QUERIES,), np.uint32, memory="host", kind=KIND)
            self._q = device.buffer("delta queries", (QUERIES, heads.Hk * heads.Dk), kind=KIND)
            self._w = device.buffer("delta rest", (QUERIES, heads.Hv * heads.Dk), memory="host", kind=KIND)
            self._rows = device.buffer("delta rows", (QUERIES, heads.Hv, SEGMENT), memory="host", kind=KIND)

    def fits(self, runner: Runner, layers: tuple[int, ...]) -> bool:
        return runner is self._runner and layers == self.layers

    # -- a call ----------------------------------------------------------------------------------------------------

    def begin(self, cache: Cache, num_tokens: int, num_queries: int) -> None:
        """A call of so many tokens, with rows of num_queries of them. Raises OutOfMemoryError, with the numbers;
        RequestError for another model's cache.
        """
        if cache.pool is not self._runner.pool:
            raise RequestError("cache: wanted one made by this model's new_cache")
        num_keys, window = len(cache) + num_tokens, self._window
        known = window is not None and window.goes_on_in(cache)
        start = window.start if known else len(cache)
        self._check_memory(num_queries, num_keys, num_keys - start)
        if known:
            window.note(cache)  # which may have gone back
        else:
            before = {layer: cache.recurrent_state(layer) for layer in self.layers} if start else {}
            window = Window(weakref.ref(cache), start, before, cache.states_set)
            window.note(cache)
        self._reserve(num_keys - start)
        self._window = window
        self._begun = len(cache) - start
        heads = self._heads
        self._pattern = {layer: np.zeros((heads.Hv, num_queries, num_keys), np.float32) for layer in self.layers}
        self._rest = {layer: np.zeros((heads.Hv, num_queries, heads.Dv), np.float32) for layer in self.layers}

    def choose(self, first: int, count: int, tokens: np.ndarray, rows: np.ndarray) -> None:
        """The run that is to begin has `count` tokens of the call, from `first` on; tokens [n] of it are queries and
        fill `rows` [n].
        """
        self._first, self._count = self._begun + first, count
        self._tokens, self._results = np.asarray(tokens), np.asarray(rows)

    def end(self, cache: Cache) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
        """The call is done, and the window has grown: what an AttentionCapture gives."""
        self._window.note(cache)
        found = self._pattern, self._rest
        self._pattern, self._rest = {}, {}
        return found

    # -- memory ----------------------------------------------------------------------------------------------------

    @property
    def _room(self) -> int:
        return self._segments[-1].first + self._segments[-1].tokens if self._segments else 0

    def _missing(self, num_tokens: int) -> list[int]:
        """Tokens of each segment more that so many want."""
        found, left = [], num_tokens - self._room
        while left > 0:
            found.append(min(SEGMENT, round_up(left, PAGE)))
            left -= found[-1]
        return found

    def _check_memory(self, num_queries: int, num_keys: int, num_tokens: int) -> None:
        heads, layers, device = self._heads, len(self.layers), self._runner.device
        what = f"delta-net rows of {num_queries} queries, {heads.Hv} heads, {num_keys} keys in {layers} layers"
        kept = sum(self._missing(num_tokens)) * layers * 4 * (heads.Hk * heads.Dk + 2 * heads.Hv)
        if kept:  # as a rule they have room, and looking takes a driver its time
            device.require(kept, f"{what}: their keys")
        results = 4 * layers * heads.Hv * (num_queries * (num_keys + heads.Dv) + heads.Dk * heads.Dv)
        require_ram(results + (kept if device.info.type == "cpu" else 0), what, "queries or layers")

    def _reserve(self, num_tokens: int) -> None:
        device, heads = self._runner.device, self._heads
        for tokens in self._missing(num_tokens):
            first = self._room
            with device.freed_on_error():
                keys = {
                    layer: kernels.DeltaKeys(
                        first,
                        *(
                            device.buffer(f"L{layer:02d}.kept {name}", (tokens, width), kind=KIND)
                            for name, width in (("k", heads.Hk * heads.Dk), ("log_decay", heads.Hv), ("beta", heads.Hv))
                        ),
                    )
                    for layer in self.layers
                }
            self._segments.append(Segment(first, tokens, keys))

    # -- a watch ---------------------------------------------------------------------------------------------------

    def wants(self, name: str) -> bool:
        return name in self._names

    def at(self, p: Program, name: str, rows: Rows) -> None:
        """In prefill a layer's rows are gone when the next one runs: the program is cut at the last of its points. What
        decode keeps of them is there until it has ended.
        """
        layer, point = self._names[name]
        self._found[point] = rows
        if point != POINTS[-1]:
            return
        arguments, self._found = (layer, self._found, p.num_rows), {}
        if rows.kept:
            self._late.append(arguments)
        else:
            p.call(partial(self._take, *arguments))

    def finish(self, p: Program) -> None:
        """A program that was watched is recorded."""
        late, self._late = self._late, []
        for arguments in late:
            p.call(partial(self._take, *arguments))

    def _take(self, layer: int, source: dict[str, Rows], num_rows: int) -> None:
        """Keep what a layer read of a run's tokens, and work out the rows of its queries."""
        slots = np.arange(self._first, self._first + self._count)
        for segment in self._segments:
            places = slots - segment.first
            inside = (places >= 0) & (places < segment.tokens)
            if inside.any():
                self._places.view()[: self._count] = np.where(inside, places, NO_ROW)
                self._keep_program(layer, segment, source, num_rows).run()
        most = 1 if len(self._tokens) == 1 else QUERIES
        for first in range(0, len(self._tokens), most):
            part = slice(first, first + most)
            self._query(layer, source, num_rows, most, self._tokens[part], self._results[part])

    def _query(
        self, layer: int, source: dict[str, Rows], num_rows: int, most: int, tokens: np.ndarray, results: np.ndarray
    ) -> None:
        """Rows of these tokens of the run, at most `most`, into these of the results."""
        count, start, last = len(tokens), self._window.start, int(tokens.max()) + self._first
        places = np.full(self._count, NO_ROW, np.uint32)
        places[tokens] = np.arange(count)
        self._places.view()[: self._count] = places
        seen = self._seen.view()
        seen[:most] = 0
        seen[:count] = self._first + tokens + 1
        self._query_program(layer, source, num_rows).run()
        for segment in reversed(self._segments):
            if segment.first > last:
                continue
            self._rows_program(layer, segment, most).run()
            found = self._part(self._rows, most, segment.tokens).view()[:count]
            tokens_here = slice(start + segment.first, min(start + segment.first + segment.tokens, start + last + 1))
            width = tokens_here.stop - tokens_here.start
            self._pattern[layer][:, results, tokens_here] = found[..., :width].transpose(1, 0, 2)
        if before := self._window.before:
            left = self._w.view()[:count].reshape(count, self._heads.Hv, self._heads.Dk).transpose(1, 0, 2)
            self._rest[layer][:, results] = left @ before[layer]

    # -- programs --------------------------------------------------------------------------------------------------

    def _program(self, key: tuple, num_rows: int, append: Callable[[Program], None]) -> Program:
        if key not in self._programs:
            p = self._runner.device.program(key[0], step=self._runner.scratch.step, num_rows=num_rows)
            append(p)
            self._programs[key] = p
        return self._programs[key]

    def _keep_program(self, layer: int, segment: Segment, source: dict[str, Rows], num_rows: int) -> Program:
        def append(p: Program) -> None:
            places, keys = self._places.part("places", 0, (num_rows,)), segment.keys[layer]
            for point, target in (("k", keys.k), ("log_decay", keys.log_decay), ("beta", keys.beta)):
                kernels.record_rows(p, places, source[point], target)

        return self._program(("delta keys", layer, segment.first, num_rows), num_rows, append)

    def _query_program(self, layer: int, source: dict[str, Rows], num_rows: int) -> Program:
        def append(p: Program) -> None:
            kernels.record_rows(p, self._places.part("places", 0, (num_rows,)), source["q"], self._q)

        return self._program(("delta queries", layer, num_rows), num_rows, append)

    def _rows_program(self, layer: int, segment: Segment, most: int) -> Program:
        def append(p: Program) -> None:
            seen, q, w = (self._part(buffer, most) for buffer in (self._seen, self._q, self._w))
            rows = self._part(self._rows, most, segment.tokens)
            kernels.delta_pattern(p, seen, q, segment.keys[layer], w, rows, self._heads)

        return self._program(("delta rows", layer, segment.first, most), 1, append)

    @staticmethod
    def _part(buffer: Buffer, most: int, tokens: int | None = None) -> Buffer:
        """The beginning of a buffer as if it were one of fewer queries, and fewer tokens."""
        shape = (most, *buffer.shape[1:])
        return buffer.part(buffer.label, 0, shape if tokens is None else (*shape[:-1], tokens))

    def free(self) -> None:
        """Freeing twice does nothing."""
        self._programs.clear()
        segments, self._segments, self._window = self._segments, [], None
        for buffer in (self._places, self._seen, self._q, self._w, self._rows):
            buffer.free()
        for segment in segments:
            for keys in segment.keys.values():
                for buffer in (keys.k, keys.log_decay, keys.beta):
                    buffer.free()
