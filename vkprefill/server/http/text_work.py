"""Reads bodies and works on their text (JSON, templates, tokens) in threads, few at a time, and bounds what waits.

The work takes up to hundreds of bytes of memory for each of a body, and seconds for the longest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import anyio
import anyio.to_thread
from starlette.datastructures import Headers
from starlette.types import Receive

from vkprefill.server.api_error import ApiError
from vkprefill.server.http.wire import read_body, until_disconnect

T = TypeVar("T")

LONG_BYTES = 2**18  # one body of at least this size at a time; shorter ones do not wait for it
SHORT_AT_ONCE = 2
MAX_WAITING = 64  # bodies of each of the two sizes
MAX_BODIES_BYTES = 256 * 2**20  # of bodies that are in memory, complete or not


class TextWork:
    """For the event loop's thread. body_timeout_s: in which a body must be complete."""

    def __init__(self, body_timeout_s: float) -> None:
        self._body_timeout_s = body_timeout_s
        self._short = anyio.CapacityLimiter(SHORT_AT_ONCE)
        self._long = anyio.CapacityLimiter(1)
        self._bodies_bytes = 0

    async def on_body(
        self,
        headers: Headers,
        receive: Receive,
        work: Callable[[bytes], T],
        complete: Callable[[], None] = lambda: None,
    ) -> T:
        """What work(body) gives or raises, in a thread. complete: called when the body has come. ApiError for a body
        that is not taken, ClientLeft."""
        counted = 0

        def count(num_bytes: int) -> None:
            nonlocal counted
            if self._bodies_bytes + num_bytes > MAX_BODIES_BYTES:
                raise ApiError(503, "body: those of others take all the memory there is", retry_after=1, close=True)
            self._bodies_bytes += num_bytes
            counted += num_bytes

        try:
            body = await read_body(headers, receive, self._body_timeout_s, count)
            complete()
            return await until_disconnect(receive, lambda: self._run(work, body))
        finally:
            self._bodies_bytes -= counted

    async def _run(self, work: Callable[[bytes], T], body: bytes) -> T:
        limiter = self._long if len(body) >= LONG_BYTES else self._short
        if limiter.statistics().tasks_waiting >= MAX_WAITING:
            raise ApiError(503, f"body: {MAX_WAITING} others wait to be read, no more are taken", retry_after=1)
        return await anyio.to_thread.run_sync(work, body, limiter=limiter)
