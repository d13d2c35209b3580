"""A prompt in two parts: layers up to one, the split, read all of its tokens; the others those that are kept.

    read:     layers 0..s, chunk by chunk; x after layer s of every token is kept on the device
    prefill:  rows of x of the kept tokens -> layers s + 1..L - 1 and the head, at their original positions

Token dropping half way up: FastKV (arXiv 2502.01068). The early layers' keys, values and states are those of a dense
prefill. In between the cache is `ahead`: nothing else can run on it. Whatever runs afterwards goes through all layers,
and each layer attends to its own length.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from vkprefill.engine.cache import Ahead, Cache
from vkprefill.engine.kept_rows import program_rows
from vkprefill.engine.progress import PrefillProgress, told
from vkprefill.engine.restored import restored_on_error
from vkprefill.engine.row_store import KEPT_BYTES, RowStore
from vkprefill.engine.step import StepWord
from vkprefill.errors import RequestError
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.program import Program
from vkprefill.work import Pause, Work, whole

if TYPE_CHECKING:
    from vkprefill.engine.runner import Runner

T = TypeVar("T")
Chooser = Callable[[int, int], Program]
"""(first token of a run, how many): the program of the early layers to run them with."""


class SplitRuns:
    """Runs of one model's caches that are split, by its runner. Programs are recorded when they are first needed."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._store = RowStore(runner.device, runner.scratch)
        self._in_store: weakref.ref[Ahead] | None = None  # whose rows are in the store
        self._early: dict[int, Program] = {}
        self._late: dict[int, Program] = {}
        self._rows: dict[tuple[int, int], Program] = {}
        self._late_step: Buffer | None = None
        runner.device.spare.add(self)

    def read(
        self, token_ids: Sequence[int], positions: Sequence[int] | None, cache: Cache, split: int, **options: object
    ) -> None:
        """All slices of `read_in_slices`, which says what the options are. An exception leaves the cache as it was."""
        with restored_on_error(cache):
            whole(self.read_in_slices(token_ids, positions, cache, split, **options))

    def read_in_slices(
        self,
        token_ids: Sequence[int],
        positions: Sequence[int] | None,
        cache: Cache,
        split: int,
        *,
        marks: Sequence[int] = (),
        stops: Sequence[int] = (),
        program_for: Chooser | None = None,
        progress: PrefillProgress | None = None,
    ) -> Work[None]:
        """Run tokens through the layers up to `split`; the cache is ahead then, and prefill goes on from there. Nothing
        else is read between slices.

        marks: slots after which a snapshot may be wanted; stops: slots after which a new run begins; program_for: of
        the early layers, in place of the plain one. Raises RequestError for bad tokens and for a cache that is ahead or
        split elsewhere, OutOfMemoryError.
        """
        run = self._runner
        with run.turn:
            ids, where = run.checked(token_ids, positions, cache)
            if not 0 <= split < run.config.num_hidden_layers - 1:
                raise RequestError(f"split: {split}, wanted 0 to {run.config.num_hidden_layers - 2}, before the last")
            _refuse_ahead(cache)
            first, chosen = len(cache), program_for or (lambda *_: self.early_program(split))
            self._in_store = None
            self._store.reserve(len(ids))
            cache.reserve(len(ids))
            cache.divide(split)
            ahead = cache.ahead = Ahead(first)
            self._in_store = weakref.ref(ahead)
            ends = {*marks, *stops, first + len(ids)}
            while (done := len(cache) - first) < len(ids):
                longest = len(cache) + run.tokens_per_run(len(cache))
                part = slice(done, min(end for end in (*ends, longest) if end > len(cache)) - first)

                def read(done: int = done, part: slice = part) -> None:
                    run.step.set_tokens(ids[part], where[part], len(cache))
                    told(chosen(done, part.stop - done), done, part.stop - done, len(ids), progress)
                    self._store.keep(done, part.stop - done)
                    cache.append_early(ids[part].tolist(), where[part].tolist())

                cache.reserve(part.stop - done)
                run.undone_on_error(cache, read)
                if len(cache) in marks:
                    ahead.states[len(cache)] = run.pool.state_up_to(split)
                if part.stop < len(ids):
                    yield Pause.SLICE

    def prefill(
        self,
        token_ids: Sequence[int],
        cache: Cache,
        positions: Sequence[int] | None,
        head: Callable[[], T] | None,
        program_for: Chooser | None,
        progress: PrefillProgress | None,
    ) -> T | None:
        """See Runner.prefill. Of a cache that is ahead: tokens that were read, through the other layers; the last one
        read ends the prompt.
        """
        run = self._runner
        if program_for is not None:
            raise RequestError(f"cache: {_described(cache)}; attention rows can be taken of others only")
        if cache.ahead is None:
            ids, where = run.checked(token_ids, positions, cache)
            cache.reserve(len(ids))
            return run.undone_on_error(cache, lambda: self._run_both(ids, where, cache, progress), head)
        ids, where = run.checked(token_ids, positions, cache, last=(cache.late_positions or [-1])[-1])
        slots = self._slots(ids, where, cache)
        cache.reserve(0)
        result = run.undone_on_error(cache, lambda: self._run_late(ids, where, slots, cache, progress), head)
        if cache.ahead is None:
            self._in_store = None
            if self._store.num_bytes > KEPT_BYTES:
                self._store.free()
        return result

    def _run_both(self, ids: np.ndarray, where: np.ndarray, cache: Cache, progress: PrefillProgress | None) -> None:
        """All layers, each at its own length."""
        run, done = self._runner, 0
        while done < len(ids):
            part = slice(done, done + min(run.tokens_per_run(len(cache)), len(ids) - done))
            run.step.set_tokens(ids[part], where[part], len(cache))
            self.early_program(cache.split).run()
            run.step.set_words({StepWord.CACHE_LEN: cache.late_length})
            told(self.late_program(cache.split), done, part.stop - done, len(ids), progress)
            cache.append(ids[part].tolist(), where[part].tolist())
            done = part.stop

    def _run_late(
        self, ids: np.ndarray, where: np.ndarray, slots: np.ndarray, cache: Cache, progress: PrefillProgress | None
    ) -> None:
        """Tokens that the early layers have in these slots, through the others."""
        run, ahead, done = self._runner, cache.ahead, 0
        while done < len(ids):
            part = slice(done, done + min(run.tokens_per_run(cache.late_length), len(ids) - done))
            run.step.set_tokens(ids[part], where[part], cache.late_length)
            self._store.take(slots[part] - ahead.first)
            told(self.late_program(cache.split), done, part.stop - done, len(ids), progress)
            cache.append_late(where[part].tolist())
            done = part.stop

    def _slots(self, ids: np.ndarray, where: np.ndarray, cache: Cache) -> np.ndarray:
        """Of tokens that were read ahead. RequestError for others, and where their rows are gone."""
        if cache.ahead is not self._awaited():
            raise RequestError("cache: the rows of the prompt that it has read are gone; another prompt was read since")
        known = np.asarray(cache.positions)
        slots = np.minimum(np.searchsorted(known, where), len(known) - 1)
        same = (known[slots] == where) & (np.asarray(cache.token_ids)[slots] == ids) & (slots >= cache.ahead.first)
        if not same.all():
            raise RequestError(f"token_ids: that at position {where[~same][0]} is not what was read there")
        return slots

    def rows(self, cache: Cache, count: int, program: Callable[[], Program] | None) -> Callable[[], Program]:
        """The program of `count` rows of decode on a split cache; RequestError where another one was to be run."""
        _refuse_ahead(cache)
        if program is not None:
            raise RequestError(f"cache: {_described(cache)}; attention rows can be taken of others only")
        return lambda: self._rows_program(cache, program_rows(count))

    def _rows_program(self, cache: Cache, rows: int) -> Program:
        """Its late layers are told what the step is, with their own length."""
        step = self._runner.scratch.step
        if self._late_step is None:
            self._late_step = self._runner.device.buffer(
                "late_step", step.shape, step.dtype, memory="host", kind="exchange"
            )
        if (cache.split, rows) not in self._rows:
            late = cache.split, self._late_step
            self._rows[cache.split, rows] = self._runner.forward.record_rows(f"split decode {rows}", rows, late=late)
        words = self._late_step.view()
        words[:] = step.view()
        words[StepWord.CACHE_LEN] = cache.late_length
        return self._rows[cache.split, rows]

    def early_program(self, split: int) -> Program:
        """Token ids -> x after the split, of a step of prefill."""
        if split not in self._early:
            self._early[split] = self.record_early("early prefill", split)
        return self._early[split]

    def record_early(self, name: str, split: int, tap: Callable[[Program, int], None] | None = None) -> Program:
        """tap: see ForwardPass.record_trunk."""
        return self._runner.forward.record_layers(name, self._runner.sizes.rows, range(split + 1), tap)

    def late_program(self, split: int) -> Program:
        """x after the split -> x after the last layer."""
        if split not in self._late:
            layers = range(split + 1, self._runner.config.num_hidden_layers)
            self._late[split] = self._runner.forward.record_layers("late prefill", self._runner.sizes.rows, layers)
        return self._late[split]

    def _awaited(self) -> Ahead | None:
        """What the rows in the store are of; None: of nothing that is still there."""
        return self._in_store() if self._in_store else None

    def free_spare(self) -> None:
        """The device needs memory: rows that nobody waits for go."""
        if self._awaited() is None:
            self._store.free()

    def close(self) -> None:
        """Free everything; a later use begins anew."""
        for programs in (self._early, self._late, self._rows):
            programs.clear()
        self._in_store = None
        self._store.free()
        if self._late_step is not None:
            self._late_step.free()
            self._late_step = None


def _described(cache: Cache) -> str:
    return f"layers after {cache.split} have only {cache.late_length} of its {len(cache)} tokens"


def _refuse_ahead(cache: Cache) -> None:
    if cache.ahead is not None:
        raise RequestError(
            f"cache: only the layers up to {cache.split} have read its last {len(cache) - cache.ahead.first} tokens; "
            "prefill those that are kept, or go back to a snapshot"
        )
