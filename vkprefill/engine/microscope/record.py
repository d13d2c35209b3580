"""A prompt run with some of its points recorded, and some edited: what Model.record does.

The run is that of the model: the same chunks, decode one token at a time, with a dispatch more at each point that is
asked for. Products of prefill are of float32, also where the model makes them of halves otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vkprefill.checks import check_number
from vkprefill.display import quoted
from vkprefill.engine.cache import Cache
from vkprefill.engine.forward import NORMALIZED
from vkprefill.engine.memory import MemoryBill
from vkprefill.engine.microscope.activations import ActivationCache
from vkprefill.engine.microscope.edits import STEPS, Edit, PlacedEdit, placed_edits
from vkprefill.engine.microscope.head import Head
from vkprefill.engine.microscope.names import KEYS, LOGITS, STATE, Name, expand, layer_of, local_name, point_shapes
from vkprefill.engine.microscope.state_edits import StateEdits
from vkprefill.engine.microscope.taps import BothTaps, EditTaps, RowTaps, edit_bytes, row_bytes
from vkprefill.engine.progress import PrefillProgress
from vkprefill.engine.runner import Runner
from vkprefill.engine.token_input import checked_ids
from vkprefill.errors import RequestError
from vkprefill.vulkan.host_memory import require_ram
from vkprefill.vulkan.program import Program

MOST_TOKENS = 1 << 20


@dataclass(frozen=True)
class Wish:
    """What is to be recorded. names: full names; tokens: of the prompt, "last", "all" or a slice; steps: "prefill",
    "decode" or "both"; max_tokens: to generate, the most probable each time, and record in decode.
    """

    names: tuple[str, ...]
    tokens: str | slice = "last"
    steps: str = "prefill"
    max_tokens: int = 0

    def __post_init__(self) -> None:
        if not (self.tokens in ("last", "all") if isinstance(self.tokens, str) else isinstance(self.tokens, slice)):
            raise RequestError(f'tokens: found {quoted(self.tokens)}, wanted "last", "all" or a slice')
        if isinstance(self.tokens, slice) and not _rises(self.tokens):
            raise RequestError(f"tokens: found {quoted(self.tokens)}, wanted a slice of whole numbers that rises")
        if self.steps not in STEPS:
            raise RequestError(f"steps: found {quoted(self.steps)}, wanted one of {', '.join(STEPS)}")
        check_number("max_tokens", self.max_tokens, int, 0, MOST_TOKENS)
        if self.steps != "prefill" and not self.max_tokens:
            raise RequestError(f"steps: found {self.steps!r} with max_tokens 0, wanted at least 1 to decode")

    @classmethod
    def of(cls, runner: Runner, names: Name | Sequence[Name], tokens, steps: str, max_tokens: int) -> Wish:
        return cls(tuple(expand(names, point_shapes(runner.config))), tokens, steps, max_tokens)

    def of_prompt(self, num_tokens: int) -> np.ndarray:
        """int64, rising: the prompt's tokens that are recorded."""
        if self.steps == "decode":
            return np.zeros(0, np.int64)
        every = np.arange(num_tokens)
        chosen = every[-1:] if self.tokens == "last" else every if self.tokens == "all" else every[self.tokens]
        if not len(chosen):
            raise RequestError(f"tokens: {self.tokens} of a prompt of {num_tokens} tokens is none of them")
        return chosen

    @property
    def num_decoded(self) -> int:
        """Tokens that are recorded in decode, at most."""
        return self.max_tokens if self.steps != "prefill" else 0


def _rises(tokens: slice) -> bool:
    try:
        return tokens.indices(0)[2] > 0
    except (TypeError, ValueError):
        return False


class Recorder:
    """Records prompts one after another, with the same names and edits; `close` gives its memory back.

    stop_ids: tokens that end what is generated.
    """

    def __init__(self, runner: Runner, wish: Wish, stop_ids: Iterable[int] = ()) -> None:
        self._runner, self.wish, self._stop_ids = runner, wish, frozenset(stop_ids)
        self._known = point_shapes(runner.config)
        self._shapes = {name: self._known[name] for name in wish.names}
        self._states = [name for name in wish.names if local_name(name) == STATE]
        self._logits = LOGITS in wish.names
        staged = {n: s for n, s in self._shapes.items() if n not in self._states and n != LOGITS}
        if self._logits:
            staged[NORMALIZED] = self._known[NORMALIZED]
        self._staged = staged
        self._with_keys = any(KEYS in shape for shape in staged.values())
        self._rows: RowTaps | None = None
        self._programs: dict[int, Program] = {}
        self._head = Head(runner)
        self._factors: dict[str, float] = {}

    def record(
        self,
        token_ids: Sequence[int],
        positions: Sequence[int] | None = None,
        edits: Edit | Iterable[Edit] = (),
        progress: PrefillProgress | None = None,
    ) -> ActivationCache:
        """Run a prompt on a cache of its own. Raises RequestError, OutOfMemoryError."""
        run = self._runner
        with run.turn:
            ids = checked_ids(token_ids, run.config.vocab_size)
            placed = placed_edits(edits, self._known, len(ids), self.wish.max_tokens)
            if placed:
                self._programs.clear()  # of another watch
            chosen = self.wish.of_prompt(len(ids))
            total = len(chosen) + self.wish.num_decoded
            memory = self._checked_memory(len(ids), chosen, total, placed)
            cache = run.new_cache()
            try:
                return _Run(self, cache, placed, chosen, memory).run(ids, positions, progress)
            finally:
                cache.close()
                if placed:
                    self._programs.clear()

    def close(self) -> None:
        """Closing twice does nothing."""
        self._programs.clear()
        if self._rows is not None:
            self._rows.free()
            self._rows = None

    def _most(self, chosen: np.ndarray) -> int:
        return max(1, self.longest_run(len(chosen)))

    def longest_run(self, num_tokens: int) -> int:
        """Tokens of the longest run of so many."""
        return min(num_tokens, self._runner.sizes.prefill_chunk)

    def _checked_memory(self, num_tokens: int, chosen: np.ndarray, total: int, placed: list[PlacedEdit]) -> MemoryBill:
        """The bill of a run. OutOfMemoryError, with the numbers, where the rows that are asked for are more than there
        is room for.
        """
        run, keys = self._runner, num_tokens + self.wish.max_tokens
        staging = row_bytes(run, self._staged, self._most(chosen), keys)
        staging += edit_bytes(run, of_rows(placed), self.longest_run(num_tokens))
        shapes = {**self._staged, **self._shapes}.values()
        results = 4 * sum(total * math.prod(keys if n == KEYS else n for n in shape) for shape in shapes)
        what = f"recording {len(self.wish.names)} points of {total} tokens"
        run.device.require(0, f"{what}: rows of a step", host_bytes=staging)
        require_ram(results + staging, what, "points or tokens")
        return replace(run.memory, points=run.memory.points + staging)

    def rows(self, most: int, num_keys: int) -> RowTaps:
        """Buffers for so many tokens of a run: those of the prompt before, where they suffice."""
        if self._rows is None or most > self._rows.most or self._with_keys and num_keys > self._rows.stride:
            self.close()
            with self._runner.device.freed_on_error():
                self._rows = RowTaps(self._runner, self._staged, most, num_keys)
        self._rows.num_keys = num_keys
        return self._rows

    def program(self, taps: BothTaps, count: int, *, decode: bool) -> Program:
        """Of a run of so many tokens, as the runner's own but for the points."""
        forward, rows = self._runner.forward, self._runner.prefill_rows(count)
        key = 0 if decode else rows
        if key not in self._programs:
            if decode:
                self._programs[key] = forward.record_rows("recorded decode", 1, watch=taps)
            else:
                self._programs[key] = forward.record_trunk("recorded prefill", rows, watch=taps)
        return self._programs[key]


class _Run:
    """One prompt of a recorder."""

    def __init__(
        self, recorder: Recorder, cache: Cache, placed: list[PlacedEdit], chosen: np.ndarray, memory: MemoryBill
    ) -> None:
        self.recorder, self.cache, self.chosen = recorder, cache, chosen
        self.runner, self.wish = recorder._runner, recorder.wish
        self.states = StateEdits(self.runner, [edit for edit in placed if local_name(edit.name) == STATE])
        self.placed, self.memory = of_rows(placed), memory
        self.num_recorded = 0
        self.pending: np.ndarray | None = None  # tokens of the run before whose rows are still on the device

    def run(
        self, ids: np.ndarray, positions: Sequence[int] | None, progress: PrefillProgress | None
    ) -> ActivationCache:
        run, recorder, wish = self.runner, self.recorder, self.wish
        self.num_keys = len(ids) + wish.max_tokens
        total = len(self.chosen) + wish.num_decoded
        with run.device.freed_on_error():
            rows = recorder.rows(recorder._most(self.chosen), self.num_keys)
            edits = EditTaps(run, self.placed, recorder.longest_run(len(ids)))
            self.taps = BothTaps(edits, rows, recorder._factors)
            head = run.forward.record_head(edits) if edits.wants(NORMALIZED) else run.head_program
        shapes = {**recorder._staged, **recorder._shapes}
        self.results = {name: self._empty(shape, total) for name, shape in shapes.items() if name != LOGITS}
        try:
            where = run.checked(ids, positions, self.cache)[1]
            for part in self._parts(len(ids)):
                last = part.stop == len(ids)

                def logits() -> np.ndarray:
                    edits.choose_last()
                    run.step.set_best(None)
                    head.run()
                    return run.logits()

                row = run.prefill(
                    ids[part],
                    self.cache,
                    positions=where[part],
                    head=logits if last else None,
                    program_for=lambda first, count, start=part.start: self._prefill_program(start + first, count),
                    progress=progress and (lambda done, _, start=part.start: progress(start + done, len(ids))),
                )
                self._after(part.stop - 1, decode=False)
            generated = self._decode(row) if wish.max_tokens else ([], row)
        finally:
            edits.free()
        return self._cache(ids, *generated)

    def _empty(self, shape: tuple[int, ...], total: int) -> np.ndarray:
        if KEYS in shape:  # [H, Q, S]
            return np.zeros((shape[0], total, self.num_keys), np.float32)
        return np.empty((total, *shape), np.float32)

    def _parts(self, num_tokens: int) -> list[slice]:
        """Of the prompt: a run ends where a state is wanted, or changed."""
        ends = set(self.chosen.tolist()) if self.recorder._states else set()
        ends |= self.states.ends(num_tokens, decode=False)
        stops = sorted({end + 1 for end in ends} | {num_tokens})
        return [slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]

    def _prefill_program(self, first: int, count: int) -> Program:
        self._drain()
        self.pending = self.chosen[(self.chosen >= first) & (self.chosen < first + count)]
        self._choose(first, count, self.pending - first, decode=False)
        return self.recorder.program(self.taps, count, decode=False)

    def _choose(self, first: int, count: int, tokens: np.ndarray, *, decode: bool) -> None:
        self.taps.rows.choose(tokens, count)
        self.taps.edits.choose(first, count, decode=decode)

    def _drain(self) -> None:
        """The rows of the run before -> results."""
        if self.pending is None:
            return
        count, at = len(self.pending), self.num_recorded
        for name in self.recorder._staged if count else ():
            factor = self.recorder._factors.get(name, 1.0)
            values = self.taps.rows.read(name, count, self.pending, factor)
            if KEYS in self.recorder._staged[name]:
                self.results[name][:, at : at + count] = values.transpose(1, 0, 2)
            else:
                self.results[name][at : at + count] = values
        self.num_recorded += count
        self.pending = None

    def _after(self, token: int, *, decode: bool) -> None:
        """After a run that ended with this token."""
        recorded = self.pending is not None and token in self.pending
        self._drain()
        self.states.apply(self.cache, token, decode=decode)
        for name in self.recorder._states if recorded else ():
            self.results[name][self.num_recorded - 1] = self.cache.recurrent_state(layer_of(name))

    def _decode(self, row: np.ndarray) -> tuple[list[int], np.ndarray]:
        """Up to max_tokens tokens, the most probable each time: (ids, logits after the last)."""
        run, generated = self.runner, []
        while len(generated) < self.wish.max_tokens:
            token = int(row.argmax())
            if token in self.recorder._stop_ids:
                break
            place = len(self.cache)

            def program(place: int = place) -> Program:
                self.pending = np.array([place] if self.wish.num_decoded else [], np.int64)
                self._choose(place, 1, self.pending - place, decode=True)
                return self.recorder.program(self.taps, 1, decode=True)

            row = run.decode(token, self.cache, run.logits, program=program)
            generated.append(token)
            self._after(place, decode=True)
        return generated, row

    def _cache(self, ids: np.ndarray, generated: list[int], row: np.ndarray) -> ActivationCache:
        count, recorder = self.num_recorded, self.recorder
        keys, every = len(self.cache), np.concatenate([ids, np.array(generated, np.int64)])
        shapes = {**recorder._staged, **recorder._shapes}
        found = {
            name: values[:, :count, :keys] if KEYS in shapes[name] else values[:count]
            for name, values in self.results.items()
        }
        if recorder._logits:
            found[LOGITS] = recorder._head.logits(found[NORMALIZED], normed=True)
        where = np.array(self.cache.positions, np.int64)
        decoded = np.arange(len(ids), len(ids) + len(generated)) if self.wish.num_decoded else np.zeros(0, np.int64)
        tokens = np.concatenate([self.chosen, decoded])
        return ActivationCache(
            arrays={name: np.ascontiguousarray(found[name]) for name in self.wish.names},
            known=recorder._known,
            head=recorder._head,
            tokens=tokens,
            positions=where[tokens],
            token_ids=every,
            num_prompt=len(ids),
            logits=row,
            memory=self.memory,
        )


def of_rows(placed: list[PlacedEdit]) -> list[PlacedEdit]:
    """Those that are dispatches, as states are changed between runs."""
    return [edit for edit in placed if local_name(edit.name) != STATE]
