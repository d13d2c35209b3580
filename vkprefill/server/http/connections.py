"""How many connections there may be at once, and how long one may be silent, half-sent or unread.

uvicorn bounds none of these. Without a bound, connections that send nothing take all descriptors, and nobody else is
answered.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from dataclasses import dataclass
from functools import partial

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from vkprefill.server.api_error import ApiError
from vkprefill.server.http.wire import dump

MAX_CONNECTIONS = 1000
BACKLOG = 64  # connections that the kernel keeps until they are taken; all at once, before they are counted
OWN_FILES = 64  # of this process: its libraries, pipes, the models' files when the engine starts again
REPEAT_S = 60.0  # the log tells the same thing once in this time


@dataclass(frozen=True)
class Limits:
    """most: connections at once; header_s: for a request's headers, from its first byte or the connection's start;
    idle_s: between two requests; unread_s: in which the client takes nothing of what is sent."""

    most: int
    header_s: float = 10.0
    idle_s: float = 10.0
    unread_s: float = 60.0


def most_connections() -> int:
    """As many as this process has descriptors for, beside its own and those that come in at once."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(1, min(MAX_CONNECTIONS, descriptors - OWN_FILES - BACKLOG))


def server_config(app: ASGIApp, limits: Limits) -> uvicorn.Config:
    """uvicorn's settings for a server whose connections keep to the limits and whose log does not repeat itself."""
    config = uvicorn.Config(
        app,
        http=partial(Connection, limits),
        ws="none",
        lifespan="on",
        log_config=None,  # its lines go where ours do
        log_level="warning",
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=limits.idle_s,
    )
    for name in ("uvicorn.error", "asyncio"):
        logging.getLogger(name).addFilter(NoRepeats())
    return config


class Connection(H11Protocol):
    """uvicorn's connection, with limits."""

    def __init__(self, limits: Limits, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self._limits = limits
        self._request_timer: asyncio.TimerHandle | None = None
        self._unread_timer: asyncio.TimerHandle | None = None
        self.quiet_since = self.loop.time()

    @property
    def busy(self) -> bool:
        """Whether a request is in work, or its answer on the way."""
        answering = self.cycle is not None and not self.cycle.response_complete
        return answering or self.transport.get_write_buffer_size() > 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._watch()
        open_ones = [one for one in self.connections if not one.transport.is_closing()]
        if len(open_ones) > self._limits.most:
            quiet = [one for one in open_ones if not one.busy and one is not self]
            if quiet:  # the newcomer has more to say than the one that has been silent longest
                min(quiet, key=lambda one: one.quiet_since).transport.abort()
            else:
                self._refuse(ApiError(503, f"{self._limits.most} connections are open, no more are taken"))

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        self.quiet_since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._request_timer, self._unread_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread_timer is not None:
            self._unread_timer.cancel()

    def _watch(self) -> None:
        """Time the next request's headers; its bytes do not put the end off. Between requests uvicorn's timer runs
        until the first byte."""
        if self.cycle is not None and not self.cycle.response_complete:
            if self._request_timer is not None:
                self._request_timer.cancel()
                self._request_timer = None
        elif self._request_timer is None:
            self._request_timer = self.loop.call_later(self._limits.header_s, self._no_request)

    def _no_request(self) -> None:
        if self.transport.is_closing():
            return
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            self._refuse(ApiError(408, f"headers: not complete after {self._limits.header_s:g} s"))
        else:
            self.transport.abort()

    def _watch_reader(self, unread: int) -> None:
        self._unread_timer = self.loop.call_later(self._limits.unread_s, self._no_reader, unread)

    def _no_reader(self, unread: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left >= unread:
            self.transport.abort()
        else:
            self._watch_reader(left)

    def _refuse(self, error: ApiError) -> None:
        body = dump(error.body())
        response = h11.Response(
            status_code=error.status,
            headers=[
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                (b"connection", b"close"),
            ],
        )
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))
        self.transport.close()


class NoRepeats(logging.Filter):
    """A filter that holds back what was logged in the last REPEAT_S seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._told: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now = time.monotonic()
        self._told = {line: when for line, when in self._told.items() if now - when < REPEAT_S}
        line = (str(record.msg), repr(record.exc_info[1]) if record.exc_info else "")
        if line in self._told:
            return False
        self._told[line] = now
        return True
