"""How the server ends: no new connections, answers in work are finished, and those that take too long are cut with an
error that says so, rather than in the midst of a line. A second signal cuts at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable
from types import FrameType

import uvicorn

log = logging.getLogger("vkprefill")

LAST_WORDS_S = 5.0  # for the errors of what was cut to be read, then for their tasks to end


class DrainingServer(uvicorn.Server):
    """uvicorn's server. cut: ends all answers in work, which have drain_s after the first signal."""

    def __init__(self, config: uvicorn.Config, drain_s: float, cut: Callable[[], Awaitable[None]]) -> None:
        config.timeout_graceful_shutdown = drain_s + 2 * LAST_WORDS_S
        super().__init__(config)
        self._drain_s = drain_s
        self._cut = cut
        self._at_once = asyncio.Event()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit and not self._at_once.is_set():
            self._at_once.set()  # seen when the loop next wakes: uvicorn looks ten times a second whether all is done
        else:
            super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        limit = asyncio.create_task(self._cut_late_ones())
        try:
            await super().shutdown(sockets)
        finally:
            limit.cancel()

    async def _cut_late_ones(self) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._at_once.wait(), self._drain_s)
        log.warning("stopping: answers in work are cut")
        await self._cut()
        await asyncio.sleep(LAST_WORDS_S)
        for connection in list(self.server_state.connections):  # of those who do not read
            connection.transport.abort()
