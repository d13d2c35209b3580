"""Bodies in, JSON and event streams out; bounded in size and time."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Send

from vkprefill.server.api_error import ApiError
from vkprefill.server.protocol.anthropic import error_body

T = TypeVar("T")

MAX_BODY_BYTES = 4 * 2**20  # a prompt of 262,144 tokens has about 1 MiB of text
ANTHROPIC_PATH = re.compile(r"(/v1)?/messages(/|$)")
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class ClientLeft(Exception):
    """The connection was closed before the answer was complete."""


async def read_body(headers: Headers, receive: Receive, timeout_s: float, count: Callable[[int], None]) -> bytes:
    """The whole body. ApiError for one that is too large or comes too slowly.

    count: called with the number of bytes of each part; it may refuse the body.
    """
    length = headers.get("content-length", "0")
    if length.isdecimal() and int(length[:20]) > MAX_BODY_BYTES:
        raise _too_large()
    raw = bytearray()
    try:
        with anyio.fail_after(timeout_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientLeft
                part = message.get("body", b"")
                count(len(part))
                raw += part
                if len(raw) > MAX_BODY_BYTES:
                    raise _too_large()
                if not message.get("more_body"):
                    return bytes(raw)
    except TimeoutError:
        raise ApiError(408, f"body: not complete after {timeout_s:g} s", close=True) from None


def _too_large() -> ApiError:
    return ApiError(413, f"body: larger than {MAX_BODY_BYTES} bytes", close=True)


async def until_disconnect(receive: Receive, work: Callable[[], Awaitable[T]]) -> T:
    """What `work` gives or raises. When the client leaves first it is cancelled, and ClientLeft raised."""
    result, error = None, ClientLeft()
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        group.start_soon(watch)
        try:
            result, error = await work(), None
        except Exception as raised:
            error = raised
        group.cancel_scope.cancel()
    if error is not None:
        raise error
    return result


class JsonResponse(Response):
    """Any JSON value; text as it is, in UTF-8."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        return dump(content)


def error_response(error: ApiError, path: str) -> JsonResponse:
    """path: of the request; its API says the form."""
    body = error_body(error) if ANTHROPIC_PATH.match(path) else error.body()
    return JsonResponse(body, error.status, error.headers())


def dump(value: object) -> bytes:
    """JSON as bytes; half a character that came in as \\ud83d goes out as one that can be encoded."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(errors="replace")


class EventStream:
    """Server-sent events, each a JSON value, and comments that keep the connection open."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def event(self, value: object, name: str | None = None) -> None:
        await self._lines((b"" if name is None else f"event: {name}\n".encode()) + b"data: " + dump(value))

    async def ping(self) -> None:
        await self._lines(b": ping")

    async def end(self, mark: bool = True) -> None:
        """mark: with OpenAI's last line."""
        if mark:
            await self._lines(b"data: [DONE]")
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def start(self) -> None:
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})

    async def _lines(self, lines: bytes) -> None:
        await self.start()
        await self._send({"type": "http.response.body", "body": lines + b"\n\n", "more_body": True})
