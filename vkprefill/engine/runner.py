"""Runs tokens through a model on a device: the step's buffers, the programs, chunks, undo.

Three programs are recorded once and replayed: `prefill` takes up to prefill_chunk tokens through all layers, `head`
turns the last token's hidden state into logits and candidates, `decode` does both for one token. The first token needs
the first two only: the third is recorded after it, and so are those like it for a few tokens of which only the first
ones may be kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Protocol, TypeVar

import numpy as np

from vkprefill.engine.cache import Cache
from vkprefill.engine.cache_pool import CachePool
from vkprefill.engine.diagnosis import not_finite
from vkprefill.engine.forward import ForwardPass
from vkprefill.engine.kept_rows import KEPT, program_rows
from vkprefill.engine.memory import LoadOptions, MemoryBill, chunk_for, fit, memory_bill
from vkprefill.engine.one_thread import OneThread
from vkprefill.engine.progress import PrefillProgress, told
from vkprefill.engine.scratch import Scratch
from vkprefill.engine.sizes import MAX_DRAFTS, PAGE, ROW_TILE, most_tokens
from vkprefill.engine.speed_meter import SpeedMeter
from vkprefill.engine.split import SplitRuns
from vkprefill.engine.step import StepWord
from vkprefill.engine.step_input import Best, StepInput
from vkprefill.engine.token_input import MAX_POSITION, checked_ids, checked_positions
from vkprefill.engine.weights import MTPWeights, Progress, load_weights
from vkprefill.errors import OutOfMemoryError, RequestError
from vkprefill.gguf.config import ModelConfig
from vkprefill.gguf.file import GGUFFile
from vkprefill.gguf.mtp import MTPBlock
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.program import Program

T = TypeVar("T")

LOGITS_ROWS = 32  # tokens whose whole logits rows are computed together
SHORT_ROWS = 32  # rows of the prefill program for short prompts


class Companion(Protocol):
    """Programs and buffers of another part of the engine, which are closed before the runner is."""

    def close(self) -> None: ...


class Runner:
    """A model's weights, caches and programs on a device. One thread at a time.

    sizes: what it was loaded with; memory: the bill; scratch: the buffers of a step; step: writes into them what a run
    is told; pool: the memory of the caches; forward: records programs; meter: how fast its plain programs have run;
    companions: what others keep with it, by name.
    """

    def __init__(
        self,
        file: GGUFFile,
        config: ModelConfig,
        device: Device,
        options: LoadOptions,
        report: Progress,
        block: MTPBlock | None = None,
    ) -> None:
        self.config, self.device = config, device
        self.companions: dict[str, Companion] = {}
        self.turn = OneThread(f"model {config.name}")
        self.sizes = fit(file, config, device, options, block)
        self.meter = SpeedMeter(self.sizes.prefill_chunk)
        self.memory: MemoryBill = memory_bill(file, self.sizes)
        what = f"{file.label} with a context of {self.sizes.max_context} tokens"
        device.require(self.memory.on_device, what, host_bytes=self.memory.on_host)
        self._mtp_window = options.mtp_window
        self._all_logits: Buffer | None = None
        self._logits_program: Program | None = None
        self._rows_programs: dict[int, Program] = {}
        with device.freed_on_error():
            self.pool = CachePool(device, self.sizes, self.turn)
            self.scratch = Scratch.allocate(device, self.sizes)
            self.step = StepInput(self.scratch, config)
            # Products run over whole tiles of rows. What lies past the last token is dropped, but the denormal numbers
            # that used memory is full of would cost a CPU five times the time.
            device.clear(list(self.scratch.buffers()))
            self._weights = load_weights(file, config, device, report, block)
            self.forward = ForwardPass(device, config, self.pool, self.scratch, self._weights)
        self.pool.apply_kept = self._apply_kept

    @property
    def mtp(self) -> MTPWeights | None:
        """Of the multi-token-prediction block, where one is loaded."""
        return self._weights.mtp

    def fit_submissions(self, wanted_chunk: int | None) -> None:
        """Bound submissions by a short timing; a chunk that nobody asked for becomes shorter where that is too much."""
        self.forward.fit_submissions(self.sizes.rows)
        chunk = wanted_chunk or min(self.sizes.prefill_chunk, chunk_for(self.config, self.device.profile))
        self.sizes = replace(self.sizes, prefill_chunk=chunk)
        self.meter = SpeedMeter(chunk)

    def record(self, report: Progress) -> None:
        """The programs that the first token needs; all are new, where there were others."""
        for later in ("_short_program", "_unfilled_program", "_commit_program"):
            vars(self).pop(later, None)
        self._rows_programs.clear()
        report("recording", 0, 2)
        self.prefill_program = self.forward.record_trunk("prefill", self.sizes.rows)
        report("recording", 1, 2)
        self.head_program = self.forward.record_head()
        report("recording", 2, 2)

    def plain_program(self, count: int) -> Program:
        """Prefill of `count` tokens. Workgroups of rows that are not in use end at once, but a CPU starts each: for a
        short prompt a fifth of the time. So it has a program of its own, of the same kernels, where that does not mean
        to translate them again.
        """
        return self.prefill_program if self.prefill_rows(count) == self.sizes.rows else self._short_program

    def prefill_rows(self, count: int) -> int:
        """Rows of the program that a prefill of `count` tokens runs."""
        short = count <= SHORT_ROWS < self.sizes.rows and self.device.shares_pipelines
        return SHORT_ROWS if short else self.sizes.rows

    @cached_property
    def _short_program(self) -> Program:
        return self.forward.record_trunk("short prefill", SHORT_ROWS)

    def _plain_program_for(self, cache: Cache, count: int) -> Program:
        return self.plain_program(count) if len(cache) + count > cache.mtp_from else self._unfilled_program

    @cached_property
    def _unfilled_program(self) -> Program:
        """Prefill of tokens that the multi-token-prediction block will not look back to."""
        return self.forward.record_trunk("unfilled prefill", self.sizes.rows, fill_block=False)

    @property
    def decode_program(self) -> Program:
        return self.rows_program(1)

    def rows_program(self, count: int) -> Program:
        """Decode of `count` tokens, 1 to KEPT; recorded when it is first asked for."""
        rows = program_rows(count)
        if rows not in self._rows_programs:
            self._rows_programs[rows] = self.forward.record_rows("decode" if rows == 1 else f"decode {rows}", rows)
        return self._rows_programs[rows]

    @cached_property
    def _commit_program(self) -> Program:
        return self.forward.record_commit()

    def _apply_kept(self, count: int) -> None:
        """See CachePool.apply_kept."""
        program = self._commit_program
        self.step.set_words(self.pool.kept.words_of_last(count))
        program.run()

    @property
    def split(self) -> SplitRuns:
        """What runs prompts in two parts, of which the later layers see some tokens only."""
        if "split" not in self.companions:
            self.companions["split"] = SplitRuns(self)
        return self.companions["split"]

    def new_cache(self, max_context: int | None = None) -> Cache:
        if max_context is not None and not 1 <= max_context <= self.pool.num_slots:
            raise RequestError(f"max_context: found {max_context}, wanted 1 to {self.pool.num_slots}")
        return Cache(self.pool, min(max_context or self.sizes.max_context, self.pool.num_slots))

    # -- running -------------------------------------------------------------------------------------------------------

    def prefill(
        self,
        token_ids: Sequence[int],
        cache: Cache,
        *,
        positions: Sequence[int] | None = None,
        head: Callable[[], T] | None = None,
        program_for: Callable[[int, int], Program] | None = None,
        following: int = 0,
        progress: PrefillProgress | None = None,
    ) -> T | None:
        """All tokens through the trunk, in chunks; the last hidden state is for the head, whose result is returned.

        program_for(first, count): another program than the plain one for these tokens of the call; following: tokens of
        the same prompt that are for later calls.
        An exception inside, KeyboardInterrupt too, leaves the cache as it was.
        """
        with self.turn:
            if isinstance(cache, Cache) and cache.split is not None:
                return self.split.prefill(token_ids, cache, positions, head, program_for, progress)
            ids, positions = self.checked(token_ids, positions, cache)
            cache.reserve(len(ids))

            def run() -> None:
                start = time.perf_counter()
                if program_for is None:
                    cache.mtp_from = self._fill_from(cache, len(ids) + following)
                chosen = program_for or (lambda _, count: self._plain_program_for(cache, count))
                self._run_chunks(ids, positions, cache, chosen, progress)
                if program_for is None:
                    self.meter.prefilled(len(ids), time.perf_counter() - start)

            return self.undone_on_error(cache, run, head)

    def undone_on_error(self, cache: Cache, run: Callable[[], None], head: Callable[[], T] | None = None) -> T | None:
        """run(), then the head; an exception inside leaves the cache as it was."""
        cache.begin()
        try:
            cache.broken = True  # until all is done, or undone
            run()
            result = head() if head else None
            cache.broken = False
            return result
        except BaseException:
            if not self.device.lost:
                cache.undo()
            raise

    def _run_chunks(
        self,
        ids: np.ndarray,
        positions: np.ndarray,
        cache: Cache,
        program_for: Callable[[int, int], Program],
        progress: PrefillProgress | None,
    ) -> None:
        done = 0
        while done < len(ids):
            count = min(self.tokens_per_run(len(cache)), len(ids) - done)
            chunk = slice(done, done + count)
            self.step.set_tokens(ids[chunk], positions[chunk], len(cache))
            told(program_for(done, count), done, count, len(ids), progress)
            cache.append(ids[chunk].tolist(), positions[chunk].tolist())
            done += count

    def decode(
        self,
        token_id: int,
        cache: Cache,
        read: Callable[[], T],
        *,
        best: Best | None = None,
        program: Callable[[], Program] | None = None,
    ) -> T:
        """One token at the cache's next position: run_rows of it, and accept."""
        with self.turn:
            result = self.run_rows([token_id], cache, read, best=best, program=program)
            cache.accept(1)
            return result

    def run_rows(
        self,
        token_ids: Sequence[int],
        cache: Cache,
        read: Callable[[], T],
        *,
        best: Best | None = None,
        program: Callable[[], Program] | None = None,
    ) -> T:
        """1 to KEPT tokens at the cache's next positions, which `accept` makes part of the cache, or the first of them;
        any other use of the cache, or of another one, drops them. `read` takes the results out of the step's buffers:
        logits and candidates of each row.

        program: another than the plain one. An exception leaves the cache as it was, in `read` too; but for one between
        two submissions of the program while rows wait, after which it must go back to a snapshot, or be reset.
        """
        with self.turn:
            ids, positions = self.checked(token_ids, None, cache)
            if len(ids) > KEPT:
                raise RequestError(f"token_ids: {len(ids)} rows, wanted at most {KEPT}")
            if cache.split is not None:
                program = self.split.rows(cache, len(ids), program)
            cache.reserve(len(ids))
            kept = self.pool.kept
            self.step.set_tokens(ids, positions, len(cache))
            self.step.set_words(kept.words_of_next())
            self.step.set_best(best)
            chosen = program() if program else self.rows_program(len(ids))
            start = time.perf_counter()
            kept.run(chosen, self.scratch.logits, cache, ids.tolist(), positions.tolist())
            if program is None and len(ids) == 1:
                self.meter.decoded(time.perf_counter() - start)
            return read()

    def accept(self, cache: Cache, count: int) -> None:
        """The next `count` tokens of the last run_rows are part of the cache from now on: see Cache.accept.

        Raises RequestError where this cache has no such rows, or was used since.
        """
        with self.turn:
            cache.accept(count)

    def begin_drafts(self, token_id: int, cache: Cache, count: int, num_candidates: int) -> int:
        """The step's buffers for a chain of at most `count` draft rows after token_id, the last one known, which the
        cache does not hold. How many of them there is room for, with the token: their keys and values are overwritten
        by what runs next, and the cache stays as it is.
        """
        ids, (first,) = self.checked([token_id], None, cache)
        room = cache.max_context - len(cache) - 1
        count = min(count, MAX_DRAFTS, room, MAX_POSITION - int(first))
        if count < 1 or cache.late_length < cache.mtp_from:
            return 0
        try:
            cache.reserve(count)
        except OutOfMemoryError:  # drafts are never needed
            return 0
        pages = cache.pages[cache.mtp_from // PAGE :]
        self.pool.draft_pages.view()[: len(pages)] = pages
        self.step.set_tokens(ids, first + np.arange(count), cache.late_length - cache.mtp_from)
        self.step.set_best(None)
        self.step.set_words({StepWord.NUM_CANDIDATES: num_candidates, StepWord.WAITING: self.pool.kept.waiting})
        return count

    def _fill_from(self, cache: Cache, count: int) -> int:
        """Cache.mtp_from after `count` tokens more: all of the last ones are filled, mtp_window of them at least."""
        if self.mtp is None or self._mtp_window is None:
            return cache.mtp_from
        last = (len(cache) + count - self._mtp_window) // PAGE * PAGE
        return last if last > len(cache) else cache.mtp_from

    # -- results of the last run ---------------------------------------------------------------------------------------

    def head_logits(self) -> np.ndarray:
        """Logits float32 [V] of the last token of the last prefill."""
        self.step.set_best(None)
        self.head_program.run()
        return self.logits()

    def head_candidates(self, best: Best) -> tuple[np.ndarray, np.ndarray]:
        """Candidates of the last token of the last prefill."""
        self.step.set_best(best)
        self.head_program.run()
        return self.candidates(best)

    def logits(self, row: int = 0) -> np.ndarray:
        """float32 [V]; row: of run_rows, the head has one."""
        return self.finite(self.scratch.logits.view()[row].copy(), "logits")

    def candidates(self, best: Best, row: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """(ids int64 [k], logits float32 [k]), best first, of a run that was asked for them; row: as for logits."""
        ids, logits = best.unpacked(self.scratch.candidates.view()[row])
        return ids, self.finite(logits, "logits")

    def all_logits(self, num_tokens: int) -> np.ndarray:
        """Logits [num_tokens, V] of all tokens of the last prefill, which had at most LOGITS_ROWS: a view."""
        if self._logits_program is None:
            if self._all_logits is None:
                self._all_logits = self.device.buffer(
                    "all_logits", (LOGITS_ROWS, self.config.vocab_size), memory="host", kind="logits"
                )
            self._logits_program = self.forward.record_logits(self._all_logits)
        self._logits_program.run()
        return self.finite(self._all_logits.view()[:num_tokens], "logits")

    def finite(self, values: np.ndarray, what: str) -> np.ndarray:
        """The values; VkPrefillError, with the kind of layer and the remedy, unless all are finite."""
        if not np.isfinite(values).all():
            raise not_finite(what, self.pool, self.pool.live())
        return values

    def tokens_per_run(self, cache_len: int) -> int:
        """Fewer where the past is long; whole tiles, which products compute anyway, where there is room for one."""
        sizes, profile = self.sizes, self.device.profile
        most = most_tokens(self.config, profile, cache_len)
        tile = max(ROW_TILE, (profile.half_matmul if sizes.half else profile.matmul)[1])
        return min(sizes.prefill_chunk, most // tile * tile or most)

    def checked(
        self, token_ids: Sequence[int], positions: Sequence[int] | None, cache: Cache, last: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Ids and positions [T] of tokens after position `last` (None: the cache's). Raises RequestError."""
        if not isinstance(cache, Cache) or cache.pool is not self.pool:
            raise RequestError("cache: wanted one made by this model's new_cache")
        ids = checked_ids(token_ids, self.config.vocab_size)
        if last is None:
            last = cache.positions[-1] if len(cache) else -1
        return ids, checked_positions(positions, len(ids), first=cache.next_position, last=last)

    def close(self) -> None:
        """Free everything on the device; closing twice does nothing."""
        for companion in self.companions.values():
            companion.close()
        self.let_go()
        for buffer in (*self.pool.buffers(), *self.scratch.buffers(), *self._weights.pools):
            buffer.free()
        if self._all_logits is not None:
            self._all_logits.free()

    def let_go(self) -> None:
        """Of all that refers back to this: a closed model's pipelines then go with its last name, at once."""
        self.companions.clear()
        self.pool.apply_kept = None
