"""The server's side of the engine: the queue of jobs, those no longer wanted, and an engine that is lost or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from time import monotonic

import anyio

from vkprefill.server.api_error import ApiError
from vkprefill.server.engine.engine import EXIT_DEVICE_LOST, EXIT_NOT_LOADED
from vkprefill.server.engine.jobs import (
    Alive,
    Cancel,
    Done,
    EngineOptions,
    Failed,
    Job,
    JobEvent,
    Loading,
    Queued,
    Ready,
    Standing,
    Standings,
    Stop,
    Unusable,
)
from vkprefill.server.engine.process import EngineProcess

log = logging.getLogger("vkprefill")

WATCH_PAUSE_S = 0.5  # between two looks at whether the engine hangs


class Run:
    """A job's events as they come, up to Done: an async iterator. They wait here for their reader, so that the engine
    never does. Raises ApiError when the job fails.

    waited_s: how long it was in the queue; None while it is, and where it never left it; slot: where the engine has it,
    None before and after; standing: how it is getting on, as the engine told last.
    """

    def __init__(self, client: EngineClient, job: Job) -> None:
        self.job = job
        self.waited_s: float | None = None
        self._taken = monotonic()
        self.slot: int | None = None
        self.standing: Standing | None = None
        self._ahead = 0  # as the reader was told
        self._client = client
        self._events: asyncio.Queue[JobEvent | ApiError] = asyncio.Queue()
        self._ended = asyncio.Event()
        self._read_all = False

    def put(self, event: JobEvent | ApiError) -> None:
        self._events.put_nowait(event)

    def begin(self) -> None:
        """The engine takes it in hand."""
        self.waited_s = monotonic() - self._taken

    def tell_place(self, ahead: int) -> None:
        if self._ahead != ahead:
            self._ahead = ahead
            waited_ms = (monotonic() - self._taken) * 1e3
            self.put(Queued(self.job.job_id, ahead, len(self.job.token_ids), waited_ms))

    def end(self) -> None:
        """The engine has nothing to do with it any more."""
        self._ended.set()

    def __aiter__(self) -> Run:
        return self

    async def __anext__(self) -> JobEvent:
        if self._read_all:
            raise StopAsyncIteration
        event = await self._events.get()
        self._read_all = isinstance(event, Done | Failed | ApiError)
        if isinstance(event, ApiError):
            raise event
        if isinstance(event, Failed):
            raise ApiError(event.status, event.message, code=event.code, retry_after=1 if event.status == 503 else None)
        return event

    async def aclose(self) -> None:
        """Stop the job if it has not ended, and wait until it has."""
        if not self._ended.is_set():
            self._client.abandon(self)
            with anyio.CancelScope(shield=True):
                await self._ended.wait()


class EngineClient:
    """One engine process and the queue before it. All methods are for the event loop's thread.

    turns: jobs that the engine has at most, which it answers in turns; ready: the engine's facts, None unless it can
    take jobs; stage: a line about why not; exit_code: set when it cannot be helped; changes: of turns.
    """

    def __init__(
        self,
        options: EngineOptions,
        *,
        max_waiting: int,
        on_ready: Callable[[Ready], None],
        on_failure: Callable[[], None],
        hung_after_s: float = 0,
    ) -> None:
        """on_ready: called when the engine can take jobs; on_failure: when there is none and there will be none;
        hung_after_s: without a sign of life while it loads or works, after which it is ended (0: never)."""
        self._options = options
        self._max_waiting = max_waiting
        self._on_ready = on_ready
        self._on_failure = on_failure
        self._hung_after_s = hung_after_s
        self._ids = itertools.count(1)
        self._queue: deque[Run] = deque()  # first come, first served
        self._in_hand: dict[int, Run] = {}
        self._begun = monotonic()  # when a job was last sent, or ended
        self._heard = monotonic()  # when the engine last gave a sign of life, or was last given work
        self._last_seconds = 1.0
        self._process: EngineProcess | None = None
        self._failure = Unusable("")
        self._closing = False
        self._supervisor: asyncio.Task[None] | None = None
        self._rebuilt = False  # since a job last ended well
        self.ready: Ready | None = None
        self.stage = "starting"
        self.lost = False
        self.exit_code: int | None = None
        self.changes, self.turns = 0, options.turns

    @property
    def running(self) -> int:
        return len(self._in_hand)

    @property
    def slots(self) -> list[Run | None]:
        """The jobs that the engine has, by slot."""
        runs = {run.slot: run for run in self._in_hand.values()}
        return [runs.get(slot) for slot in range(self.turns)]

    @property
    def waiting(self) -> int:
        return len(self._queue)

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def run(self, job: Job) -> Run:
        """Take the job. Its events are to be read, and `aclose` called in the end. ApiError when there is no engine or
        the queue is full."""
        self._check_ready()
        if self.waiting >= self._max_waiting:
            raise ApiError(
                503, f"queue: {self.waiting} requests are waiting, no more are taken", retry_after=self._retry_after()
            )
        run = Run(self, replace(job, job_id=next(self._ids)))
        self._queue.append(run)
        self._next()
        return run

    def abandon(self, run: Run) -> None:
        """Its events are no longer wanted. The next job begins when the engine has stopped this one."""
        if run.slot is not None:
            self._send(Cancel(run.job.job_id))
        elif run in self._queue:
            self._queue.remove(run)
            run.end()
            self._tell_places()

    def _next(self) -> None:
        """Give the engine its next jobs if it can take some, and tell the others where they are."""
        while len(self._in_hand) < self.turns and self._queue:
            run = self._queue.popleft()
            try:
                self._check_ready()
            except ApiError as error:
                run.put(error)
                run.end()
                continue
            run.slot = self.slots.index(None)
            self._in_hand[run.job.job_id] = run
            run.begin()
            self._begun = self._heard = monotonic()
            self._send(replace(run.job, queued_ms=run.waited_s * 1e3))
        self._tell_places()

    def _tell_places(self) -> None:
        for ahead, run in enumerate(self._queue, 1):
            run.tell_place(ahead)

    def _job_event(self, event: JobEvent) -> None:
        run = self._in_hand.get(event.job_id)
        if run is None:
            return
        run.put(event)
        if isinstance(event, Done | Failed):
            if isinstance(event, Done):
                self._rebuilt = False
            self._last_seconds, self._begun = monotonic() - self._begun, monotonic()
            del self._in_hand[event.job_id]
            run.slot = None
            run.end()
            self._next()

    def _check_ready(self) -> None:
        if self._closing:
            raise ApiError(503, "the server is stopping", retry_after=10)
        if self.ready is None:
            raise ApiError(503, self.stage, code="loading", retry_after=5)

    def _retry_after(self) -> int:
        return max(1, min(60, round(self._last_seconds * (self.waiting + 1))))

    def _send(self, message: Job | Cancel | Stop) -> None:
        self._process.send(message)

    # -- the process ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise())

    async def _supervise(self) -> None:
        """Run the engine; when it is lost, once more, and again only after it has served a job in between."""
        while True:
            await self._run_process()
            self.ready = None
            if self._closing:
                return
            failure, again = self._failure, self._failure.lost and not self._rebuilt
            self.stage = f"{failure.message}; loading again" if again else failure.message
            if again:
                log.warning("%s", self.stage)
                self.lost = self._rebuilt = True
            for job_id, run in list(self._in_hand.items()):  # one that the engine did not come to may be sent again
                self._job_event(Failed(job_id, 503 if run.standing is None else 500, failure.message))
            if not again:
                self.exit_code = EXIT_DEVICE_LOST if failure.lost or self.lost else EXIT_NOT_LOADED
                log.error("Error: %s", failure.message)
                self._on_failure()
                return

    def _fail_in_hand(self, status: int, message: str) -> None:
        for job_id in list(self._in_hand):
            self._job_event(Failed(job_id, status, message))

    async def _run_process(self) -> None:
        """Start the process and take its messages until it ends, or has to be ended; `_failure` says why."""
        self._failure = Unusable("the engine's process ended unexpectedly", lost=True)
        self._heard = monotonic()
        process = self._process = EngineProcess(self._options, self._take)
        await process.start()
        try:
            while not process.ended.is_set():
                with anyio.move_on_after(WATCH_PAUSE_S):
                    await process.ended.wait()
                if self._hangs() and not process.ended.is_set():
                    process.kill()
                    await process.ended.wait()
                    self._failure = Unusable(
                        f"the engine gave no sign of life for {self._hung_after_s:g} s and was ended", lost=True
                    )
        finally:
            if self.ready is None:  # while it loads it does not look into the pipe
                process.kill()
            await process.stop()

    def _hangs(self) -> bool:
        busy = self._in_hand or self.ready is None
        return busy and 0 < self._hung_after_s < monotonic() - self._heard

    def _take(self, message: object) -> None:
        self._heard = monotonic()
        if isinstance(message, Loading):
            self.stage = message.stage if not self.lost else f"device lost, loading again: {message.stage}"
        elif isinstance(message, Ready):
            self.ready, self.lost = message, False
            self._on_ready(message)
        elif isinstance(message, Unusable):
            self._failure = message
        elif isinstance(message, Standings):
            self.changes = message.changes
            for standing in message.jobs:
                if standing.job_id in self._in_hand:
                    self._in_hand[standing.job_id].standing = standing
        elif not isinstance(message, Alive):
            self._job_event(message)

    async def stop(self) -> None:
        """Fail the jobs that there are, and end the engine."""
        self._closing = True
        self._fail_in_hand(503, "the server is stopping")
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
