"""The engine's process as the server sees it: messages go in and come out through threads of their own, so that an
engine which does not read, or has ended, never holds up the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import queue
import threading
from collections.abc import Callable

import anyio
import anyio.to_thread

from vkprefill.server.engine.engine import run_engine
from vkprefill.server.engine.jobs import Cancel, EngineOptions, Job, Stop

STOP_S = 10.0  # for the engine to end by itself


class EngineProcess:
    """Made and used in the event loop's thread. ended: set when nothing more will come."""

    def __init__(self, options: EngineOptions, take: Callable[[object], None]) -> None:
        """take: called in the event loop with each message of the engine."""
        context = multiprocessing.get_context("spawn")
        self._ours, self._theirs = context.Pipe()
        self._process = context.Process(
            target=run_engine, args=(options, self._theirs), name="vkprefill engine", daemon=True
        )
        self._take = take
        self._outbox: queue.SimpleQueue[Job | Cancel | Stop | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self.ended = asyncio.Event()

    async def start(self) -> None:
        await anyio.to_thread.run_sync(self._process.start)
        self._theirs.close()
        for work in (self._read, self._write):
            threading.Thread(target=work, daemon=True, name=f"engine {work.__name__}").start()

    def send(self, message: Job | Cancel | Stop) -> None:
        """In the order of the calls; to an engine that has ended it goes nowhere."""
        self._outbox.put(message)

    def kill(self) -> None:
        self._process.kill()

    async def stop(self) -> None:
        """Ask the engine to end, wait, and end it if it does not."""
        self.send(Stop())
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._join)

    def _join(self) -> None:
        self._process.join(STOP_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _read(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            with contextlib.suppress(EOFError, OSError):
                while True:
                    self._loop.call_soon_threadsafe(self._take, self._ours.recv())
            self._loop.call_soon_threadsafe(self.ended.set)
        self._outbox.put(None)

    def _write(self) -> None:
        while (message := self._outbox.get()) is not None:
            with contextlib.suppress(OSError):  # the engine has ended: its reader tells
                self._ours.send(message)
        self._ours.close()
