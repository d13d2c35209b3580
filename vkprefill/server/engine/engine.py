"""The process that owns the GPU: takes jobs from the pipe and answers them piece by piece, several in turns.

kp holds Python's lock while the GPU works, so nothing else runs here. Between two submissions the engine looks into the
pipe: a job that was cancelled stops there, and so does the process itself when the server is gone.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from multiprocessing.connection import Connection

from vkprefill import log_lines
from vkprefill.drafting.drafters import check_drafts
from vkprefill.engine.memory import other_states_bytes
from vkprefill.engine.model import Model, load
from vkprefill.errors import ContextLengthError, OutOfMemoryError, RequestError, VkPrefillError
from vkprefill.generation.session import Session
from vkprefill.gguf.config import ModelConfig
from vkprefill.gguf.file import open_gguf
from vkprefill.server.engine.answer import Answer, Cancelled
from vkprefill.server.engine.inbox import Inbox
from vkprefill.server.engine.jobs import (
    CANCELLED,
    TOO_LONG,
    Done,
    EngineOptions,
    Failed,
    Job,
    Loading,
    Ready,
    Standings,
    Unusable,
)
from vkprefill.server.engine.slots import CacheLimits, Slots
from vkprefill.server.engine.turns import Turn, Turns
from vkprefill.specprefill.pair import draft_room, prepare_pair, self_room
from vkprefill.vulkan.host_memory import free_ram_bytes
from vkprefill.work import Pause, Work

log = logging.getLogger("vkprefill")

EXIT_DEVICE_LOST = 3
EXIT_NOT_LOADED = 1
STANDINGS_PAUSE_S = 0.5  # between two words on how all are getting on


def run_engine(options: EngineOptions, connection: Connection) -> None:
    """Load, then serve jobs until the pipe closes. The engine's process starts here."""
    for number in (signal.SIGINT, signal.SIGTERM):  # for the server, which closes the pipe when its answers are done
        signal.signal(number, signal.SIG_IGN)
    log_lines.set_up(options.log_level, options.log_format)
    try:
        with ExitStack() as stack:
            try:
                engine = _load(options, connection, stack)
            except VkPrefillError as error:
                connection.send(Unusable(str(error)))
                sys.exit(EXIT_NOT_LOADED)
            engine.serve()
    except (EOFError, ConnectionError):  # told to stop, or the server is gone
        pass


def _load(options: EngineOptions, connection: Connection, stack: ExitStack) -> Engine:
    def progress(prefix: str) -> Callable[[str, int, int], None]:
        def report(stage: str, done: int, total: int) -> None:
            connection.send(Loading(f"{prefix}{stage} {100 * done // max(total, 1)} %"))

        return report

    spec, draft_context, draft_bytes = options.spec, 0, 0
    if options.draft is not None:
        draft_context, draft_bytes = draft_room(
            options.draft,
            spec,
            options.max_context,
            kv_type=options.kv_type,
            prefill_chunk=options.prefill_chunk,
            precision=options.precision,
        )
    elif spec is not None:
        draft_bytes = self_room(options.model, options.max_context)
    states = other_states_bytes(ModelConfig.from_gguf(open_gguf(options.model)), options.turns)
    model = stack.enter_context(
        load(
            options.model,
            options.device,
            options.max_context,
            options.kv_type,
            prefill_chunk=options.prefill_chunk,
            reserve_bytes=draft_bytes + states,
            precision=options.precision,
            mtp=options.mtp,
            mtp_window=options.mtp_window,
            steer=options.steer,
            progress=progress(""),
        )
    )
    check_drafts(model, options.decode)
    draft = None
    if options.draft is not None:
        draft = stack.enter_context(
            load(
                options.draft,
                model.device,
                draft_context,
                options.kv_type,
                prefill_chunk=options.prefill_chunk,
                precision=options.precision,
                mtp=None,
                progress=progress("draft: "),
            )
        )
    if spec is not None:
        prepare_pair(
            model, draft, spec, lambda one: connection.send(Loading(f"measuring the speed of {one.config.name}"))
        )
    wanted = options.cache_ram * 2**20 if options.cache_ram >= 0 else sys.maxsize
    limits = CacheLimits(min(wanted, free_ram_bytes() // 2), options.num_slots)
    slots = Slots(model, draft, options.spec, limits)
    stack.callback(slots.close)
    log.info("prefill in chunks of %d tokens, precision %s", model.prefill_chunk, model.precision)
    log.info("%d requests in turns, the states of those that wait take %.1f MiB", options.turns, states / 2**20)
    log.info("kernels: %s", ", ".join(model.kernels()))
    name = f"{model.device.info.name} ({model.device.info.driver})"
    connection.send(Ready(name, model.max_context, model.prefill_chunk, model.precision))
    return Engine(model, slots, connection)


class Engine:
    """Answers jobs with the sessions of its slots, several in turns."""

    def __init__(self, model: Model, slots: Slots, connection: Connection) -> None:
        self._model, self._slots, self._connection = model, slots, connection
        self._inbox = Inbox(connection)
        self._turns = Turns(lambda turn: slots.can_resume(turn.session))
        self._work: dict[Turn, Work[Done]] = {}
        self._changes, self._last, self._told = 0, None, -math.inf

    def serve(self) -> None:
        """Answer jobs until Stop or the end of the pipe (EOFError). A lost device ends the process. While there are
        none, checks that answers ended before go on, one step at a time.
        """
        try:
            while True:
                self._end_if_lost()
                if not self._inbox.look() and not self._turns and not self._slots.idle():
                    self._inbox.wait()
                while job := self._inbox.next_job(only_cancelled=self._turns.one_is_alone):
                    self._begin(job)
                if self._turns:
                    self._slice(self._cancelled() or self._turns.next())
        finally:
            for work in self._work.values():
                with suppress(VkPrefillError):
                    work.close()

    def _end_if_lost(self) -> None:
        if self._model.device.lost:
            self._connection.send(Unusable(f"{self._model.device.info.name}: the device was lost", lost=True))
            os._exit(EXIT_DEVICE_LOST)  # nothing on a lost device can be freed in order

    def _begin(self, job: Job) -> None:
        """Give the job a session, and its turns."""
        if self._inbox.is_cancelled(job.job_id):
            self._end(job, self._failed(job, Cancelled()))
            return
        try:
            session = self._slots.choose(job.token_ids, job.options)
            answer = Answer(job, session, self._connection, self._inbox, self._turns)
        except Exception as error:
            self._end(job, self._failed(job, error))
            return
        self._slots.begin(session)
        self._turns.begin(answer)
        self._work[answer] = answer.work(self._slots.scorer)
        self._tell()

    def _cancelled(self) -> Answer | None:
        """One that is no longer wanted: its last slice, in which it ends, comes before all others."""
        return next((answer for answer in self._turns if self._inbox.is_cancelled(answer.job.job_id)), None)

    def _slice(self, answer: Answer) -> None:
        """One slice of an answer. What goes wrong in it is its own."""
        self._slots.resume(answer.session)
        if answer is not self._last:
            self._last, self._changes = answer, self._changes + 1
        try:
            with self._turns.slice(answer):
                done = self._run(answer)
            if done is None:
                self._tell(at_once=False)
                return
            ended = replace(done, cache=self._slots.figures(), late_checks=self._slots.late_checks())
        except OutOfMemoryError as error:
            if self._again(answer):
                return
            ended = self._failed(answer.job, error)
        except (EOFError, ConnectionError):
            raise
        except Exception as error:
            ended = self._failed(answer.job, error, answer.session)
        del self._work[answer]
        self._turns.end(answer)
        self._slots.end(answer.session)
        self._end(answer.job, ended)

    def _run(self, answer: Answer) -> Done | None:
        """Run by run, until the slice is over, or somebody waits to begin; what came of it, if it ended."""
        work = self._work[answer]
        while True:
            if self._inbox.is_cancelled(answer.job.job_id):
                work.close()
                raise Cancelled
            try:
                answer.waits = next(work) is Pause.WAITS
            except StopIteration as end:
                return end.value
            if answer.waits or self._inbox.look() or self._turns.slice_is_over():
                return None

    def _again(self, answer: Answer) -> bool:
        """Whether an answer that found no memory is begun again: with that of idle conversations, or alone."""
        others = len(self._turns) > 1 and not answer.alone
        if answer.begun or self._model.device.lost or not (self._slots.forget_others() or others):
            return False
        answer.alone = others
        self._work[answer] = answer.work(self._slots.scorer)
        return True

    def _failed(self, job: Job, error: Exception, session: Session | None = None) -> Failed:
        if isinstance(error, Cancelled):
            return Failed(job.job_id, CANCELLED, "the client left, or the time limit was reached")
        if isinstance(error, RequestError):
            return Failed(job.job_id, 400, str(error), TOO_LONG if isinstance(error, ContextLengthError) else None)
        if isinstance(error, VkPrefillError):
            return Failed(job.job_id, 503 if isinstance(error, OutOfMemoryError) else 500, str(error))
        log.error("job %d", job.job_id, exc_info=error)  # one request must not take the others down
        if session is not None:
            self._slots.forget(session)
        return Failed(job.job_id, 500, "internal error; the server's log has more")

    def _end(self, job: Job, event: Done | Failed) -> None:
        self._inbox.forget(job.job_id)
        self._tell()
        self._connection.send(event)

    def _tell(self, at_once: bool = True) -> None:
        """How all are getting on: where jobs came or went, and now and then."""
        now = time.perf_counter()
        if at_once or now - self._told > STANDINGS_PAUSE_S:
            self._told = now
            standings = tuple(answer.standing(place) for place, answer in enumerate(self._turns))
            self._connection.send(Standings(standings, self._changes))
