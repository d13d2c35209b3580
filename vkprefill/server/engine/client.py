"""The server's side of the engine: the process, the queue before it, jobs that are no longer wanted, a lost device."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import multiprocessing
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from multiprocessing.connection import Connection

import anyio
import anyio.to_thread

from vkprefill.server.api_error import ApiError
from vkprefill.server.engine.engine import EXIT_DEVICE_LOST, EXIT_NOT_LOADED, run_engine
from vkprefill.server.engine.jobs import (
    Cancel,
    Done,
    EngineOptions,
    Failed,
    Job,
    JobEvent,
    Loading,
    Ready,
    Stop,
    Unusable,
)

log = logging.getLogger("vkprefill")

STOP_S = 10.0  # for the engine to end by itself
CLIENT_CLOSED = 499  # nobody reads it


class EngineClient:
    """One engine process and the queue before it. All methods are for the event loop's thread.

    ready: the engine's facts, None unless it can take jobs; stage: a line about why not; exit_code: set when it
    cannot be helped.
    """

    def __init__(
        self,
        options: EngineOptions,
        *,
        max_waiting: int,
        on_ready: Callable[[Ready], None],
        on_failure: Callable[[], None],
    ) -> None:
        """on_ready: called when the engine can take jobs; on_failure: when there is none and there will be none."""
        self._options = options
        self._max_waiting = max_waiting
        self._on_ready = on_ready
        self._on_failure = on_failure
        self._turn = asyncio.Lock()  # first come, first served
        self._ids = itertools.count(1)
        self._events: asyncio.Queue[JobEvent] = asyncio.Queue()  # of the job in hand
        self._job_id = 0
        self._connection: Connection | None = None
        self._closing = False
        self._supervisor: asyncio.Task[None] | None = None
        self._last_seconds = 1.0
        self.waiting = 0
        self.running = 0
        self.ready: Ready | None = None
        self.stage = "starting"
        self.lost = False
        self.exit_code: int | None = None
        self._rebuilt = False  # since a job last ended well

    # -- jobs ----------------------------------------------------------------------------------------------------------

    async def run(self, job: Job) -> AsyncIterator[JobEvent]:
        """The job's events up to Done. Close the iterator to stop the job. Raises ApiError, at once when the
        queue is full."""
        self._check_ready()
        if self.waiting >= self._max_waiting:
            raise ApiError(
                503, f"queue: {self.waiting} requests are waiting, no more are taken", retry_after=self._retry_after()
            )
        job = replace(job, job_id=next(self._ids))
        self.waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self.waiting -= 1
        self.running = 1
        try:
            self._check_ready()
            async with contextlib.aclosing(self._exchange(job)) as events:
                async for event in events:
                    yield event
        finally:
            self.running = 0
            self._turn.release()

    async def _exchange(self, job: Job) -> AsyncIterator[JobEvent]:
        self._events, self._job_id = asyncio.Queue(), job.job_id
        started, ended = time.monotonic(), False
        try:
            with anyio.CancelScope(shield=True):  # sent for certain, so that it can be stopped
                await anyio.to_thread.run_sync(self._send, job)
            while not ended:
                event = await self._events.get()
                ended = isinstance(event, Done | Failed)
                if isinstance(event, Failed):
                    raise ApiError(
                        event.status, event.message, code=event.code, retry_after=1 if event.status == 503 else None
                    )
                if isinstance(event, Done):
                    self._rebuilt = False
                yield event
        finally:
            self._last_seconds = time.monotonic() - started
            if not ended:  # the next job may start once the engine has stopped this one
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(self._send, Cancel(job.job_id))
                    while not isinstance(await self._events.get(), Done | Failed):
                        pass
            self._job_id = 0

    def _check_ready(self) -> None:
        if self._closing:
            raise ApiError(503, "the server is stopping", retry_after=10)
        if self.ready is None:
            raise ApiError(503, self.stage, code="loading", retry_after=5)

    def _retry_after(self) -> int:
        return max(1, min(60, round(self._last_seconds * (self.waiting + 1))))

    def _send(self, message: Job | Cancel | Stop) -> None:
        try:
            self._connection.send(message)
        except OSError:  # the engine has ended: its reader tells
            pass

    # -- the process ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._supervisor = asyncio.get_running_loop().create_task(self._supervise())

    async def _supervise(self) -> None:
        """Run the engine; when it is lost, once more, and again only after it has served a job in between."""
        while True:
            failure = await self._run_process()
            self.ready = None
            if self._closing:
                return
            if self._job_id:
                self._events.put_nowait(Failed(self._job_id, 500, failure.message))
            if failure.lost and not self._rebuilt:
                log.warning("%s; loading again", failure.message)
                self.lost = self._rebuilt = True
                self.stage = f"{failure.message}; loading again"
                continue
            self.stage = failure.message
            self.exit_code = EXIT_DEVICE_LOST if failure.lost or self.lost else EXIT_NOT_LOADED
            log.error("Error: %s", failure.message)
            self._on_failure()
            return

    async def _run_process(self) -> Unusable:
        """Start the process and take its events until it ends; why it did."""
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        process = context.Process(target=run_engine, args=(self._options, theirs), name="vkprefill engine", daemon=True)
        await anyio.to_thread.run_sync(process.start)
        theirs.close()
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        failure = Unusable("the engine's process ended unexpectedly", lost=True)

        def take(event: object) -> None:
            nonlocal failure
            if isinstance(event, Loading):
                self.stage = event.stage if not self.lost else f"device lost, loading again: {event.stage}"
            elif isinstance(event, Ready):
                self.ready, self.lost = event, False
                self._on_ready(event)
            elif isinstance(event, Unusable):
                failure = event
            elif event.job_id == self._job_id:
                self._events.put_nowait(event)

        def read(connection: Connection) -> None:
            try:
                while True:
                    loop.call_soon_threadsafe(take, connection.recv())
            except (EOFError, OSError):
                connection.close()
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=read, args=(self._connection,), daemon=True, name="engine events").start()
        try:
            await ended.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._send, Stop())
                await anyio.to_thread.run_sync(_end, process)
        return failure

    async def stop(self) -> None:
        """End the engine."""
        self._closing = True
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
        if self._job_id:
            self._events.put_nowait(Failed(self._job_id, 503, "the server is stopping"))


def _end(process: multiprocessing.Process) -> None:
    process.join(STOP_S)
    if process.is_alive():
        process.kill()
        process.join()
