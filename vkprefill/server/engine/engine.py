"""The process that owns the GPU: takes one job at a time from the pipe and answers it piece by piece.

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
from contextlib import ExitStack, closing
from dataclasses import replace
from multiprocessing.connection import Connection

from vkprefill import log_lines
from vkprefill.drafting.drafters import check_drafts
from vkprefill.engine.model import Model, load
from vkprefill.errors import ContextLengthError, OutOfMemoryError, RequestError, VkPrefillError
from vkprefill.explain.layer_map import layer_map
from vkprefill.generation.options import Hooks
from vkprefill.generation.parts import GenerationPart
from vkprefill.generation.sampling import Sampler, SamplingConfig
from vkprefill.generation.session import Session
from vkprefill.server.engine.echo import prompt_chances
from vkprefill.server.engine.jobs import (
    CANCELLED,
    TOO_LONG,
    Alive,
    Cancel,
    Done,
    EngineOptions,
    Failed,
    Job,
    JobEvent,
    Loading,
    Piece,
    Progress,
    Ready,
    Stop,
    Unusable,
)
from vkprefill.server.engine.logprobs import LogprobSampler, logprob_entry
from vkprefill.server.engine.prompt_details import map_details, prompt_details
from vkprefill.server.engine.slots import CacheLimits, Slots
from vkprefill.specprefill.pair import draft_room, prepare_pair, self_room
from vkprefill.vulkan.host_memory import free_ram_bytes

log = logging.getLogger("vkprefill")

EXIT_DEVICE_LOST = 3
EXIT_NOT_LOADED = 1
PROGRESS_PAUSE_S = 1.0  # between reports nobody asked for
ALIVE_PAUSE_S = 1.0  # between two signs of life
STAGES = {"progress": "prefill", "scoring": "score", "checking": "check"}  # of progress, by the names of Hooks


class _Cancelled(Exception):
    """The job in hand is no longer wanted."""


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
    model = stack.enter_context(
        load(
            options.model,
            options.device,
            options.max_context,
            options.kv_type,
            prefill_chunk=options.prefill_chunk,
            reserve_bytes=draft_bytes,
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
    log.info("kernels: %s", ", ".join(model.kernels()))
    name = f"{model.device.info.name} ({model.device.info.driver})"
    connection.send(Ready(name, model.max_context, model.prefill_chunk, model.precision))
    return Engine(model, slots, connection)


def receive(connection: Connection) -> Job | Cancel:
    """The next message. EOFError when it is Stop, or the pipe is closed."""
    message = connection.recv()
    if isinstance(message, Stop):
        raise EOFError
    return message


class Engine:
    """Answers jobs with the sessions of its slots."""

    def __init__(self, model: Model, slots: Slots, connection: Connection) -> None:
        self._model = model
        self._slots = slots
        self._connection = connection

    def serve(self) -> None:
        """Answer jobs until Stop or the end of the pipe (EOFError). A lost device ends the process. While there are
        none, checks that answers ended before go on, one step at a time.
        """
        while True:
            while not self._connection.poll() and self._slots.idle():
                self._end_if_lost()
            self._end_if_lost()
            message = receive(self._connection)
            if isinstance(message, Job):  # a Cancel here is for a job that has ended
                self._connection.send(self._run(message))

    def _end_if_lost(self) -> None:
        if self._model.device.lost:
            self._connection.send(Unusable(f"{self._model.device.info.name}: the device was lost", lost=True))
            os._exit(EXIT_DEVICE_LOST)  # nothing on a lost device can be freed in order

    def _run(self, job: Job) -> Done | Failed:
        session = None
        try:
            session = self._slots.choose(job.token_ids, job.options)
            answer = _Answer(job, session, self._connection)
            try:
                return self._with_figures(answer.run())
            except OutOfMemoryError:
                if answer.begun or self._model.device.lost or not self._slots.forget_others():
                    raise
            return self._with_figures(answer.run())
        except _Cancelled:
            return Failed(job.job_id, CANCELLED, "the client left, or the time limit was reached")
        except RequestError as error:
            return Failed(job.job_id, 400, str(error), TOO_LONG if isinstance(error, ContextLengthError) else None)
        except OutOfMemoryError as error:
            return Failed(job.job_id, 503, str(error))
        except VkPrefillError as error:
            return Failed(job.job_id, 500, str(error))
        except (EOFError, ConnectionError):
            raise
        except Exception:  # one request must not take the others down
            log.exception("job %d", job.job_id)
            if session is not None:
                self._slots.forget(session)
            return Failed(job.job_id, 500, "internal error; the server's log has more")

    def _with_figures(self, done: Done) -> Done:
        return replace(done, cache=self._slots.figures(), late_checks=self._slots.late_checks())


class _Answer:
    """One job on one session."""

    def __init__(self, job: Job, session: Session, connection: Connection) -> None:
        self._job = job
        self._session = session
        self._connection = connection
        found = session.find(job.token_ids, job.options)
        self._cached = found.length if found else 0
        self._started = time.perf_counter()
        self._reported = -math.inf  # when progress was sent
        self._sent = self._started  # when anything was
        self._map: dict[str, object] | None = None
        self.begun = False  # a piece was sent

    def run(self) -> Done:
        job, waiting = self._job, []
        progress = {name: self._progress(stage, self._cached) for name, stage in STAGES.items()}
        hooks = Hooks(**progress, make_sampler=self._make_sampler, started=self._started)
        if job.want_map:
            self._map = map_details(layer_map(self._session.model, job.token_ids, self._progress("layers", 0)))
        if job.echo and job.num_logprobs is not None:
            self._send_piece(GenerationPart("", None, None, None), self._echoed(progress["progress"]))
        with closing(self._session.stream_ids(job.token_ids, job.options, hooks)) as parts:
            for part in parts:
                self._look_into_pipe()
                waiting += [logprob_entry(self._session.model.tokenizer, chances) for chances in part.chances]
                ended = part.finish_reason is not None
                if part.text or ended or part.revised_from is not None:
                    self._send_piece(part, [] if part.held else waiting)  # those whose text is shown
                    waiting = waiting if part.held else []
                if ended:
                    return self._done(part)
        raise AssertionError("an answer ends with a finish reason")

    def _echoed(self, progress: Callable[[int, int], None]) -> list[dict[str, object]]:
        """The prompt's tokens with their log-probabilities; the first one has none."""
        model, ids = self._session.model, self._job.token_ids
        first = {**logprob_entry(model.tokenizer, [(ids[0], 0.0)]), "logprob": None, "top_logprobs": None}
        with closing(prompt_chances(model, ids, self._job.num_logprobs, progress)) as chances:
            return [first, *(logprob_entry(model.tokenizer, one) for one in chances)]

    def _done(self, part: GenerationPart) -> Done:
        model, report = self._session.model, part.specprefill.as_dict()
        if self._job.want_details:
            report |= prompt_details(model.tokenizer, self._job.token_ids, self._session.importance)
        memory = dict(model.device.allocated)
        timings, stop_text = part.timings.as_dict(), part.stop_text
        return Done(
            self._job.job_id, part.finish_reason, timings, report, stop_text, memory=memory, layer_map=self._map
        )

    def _make_sampler(self, config: SamplingConfig) -> Sampler:
        count = self._job.num_logprobs
        return Sampler(config) if count is None else LogprobSampler(config, count)

    def _progress(self, stage: str, cached: int) -> Callable[[int, int], None]:
        """cached: tokens that the stage has no work with."""

        def between(done: int, total: int) -> None:
            self._look_into_pipe()
            now = time.perf_counter()
            if self._job.want_progress or now - self._reported > PROGRESS_PAUSE_S:
                self._reported = now
                self._send(Progress(self._job.job_id, stage, done, total, cached, (now - self._started) * 1e3))

        return between

    def _send_piece(self, part: GenerationPart, logprobs: list[dict[str, object]]) -> None:
        if part.text or logprobs or part.revised_from is not None:
            self.begun = True
            self._send(Piece(self._job.job_id, part.text, tuple(logprobs), part.revised_from))

    def _send(self, event: JobEvent | Alive) -> None:
        self._sent = time.perf_counter()
        self._connection.send(event)

    def _look_into_pipe(self) -> None:
        """Raise _Cancelled for a job that is no longer wanted, EOFError when the server is gone.

        Shows that the job runs, too: tokens may bring no text, and submissions no progress.
        """
        if time.perf_counter() - self._sent > ALIVE_PAUSE_S:
            self._send(Alive())
        while self._connection.poll():
            message = receive(self._connection)
            if isinstance(message, Cancel) and message.job_id == self._job.job_id:
                raise _Cancelled
