"""What is told of each request when it ends: its id, what was asked of whom, how long it took. No text of it.

A request's id is what its X-Request-Id says, as a proxy writes it, or a new one; the answer carries it.
"""

from __future__ import annotations

import logging
import re
import uuid
from dataclasses import dataclass, field
from time import monotonic

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vkprefill.display import printable
from vkprefill.log_lines import REQUESTS
from vkprefill.server.engine.jobs import Done

log = logging.getLogger(REQUESTS)

HEADER = "X-Request-Id"
GIVEN_ID = re.compile(r"[\w.:/+=@-]{1,128}", re.ASCII)
PROBES = ("/health", "/metrics", "/slots")  # asked every few seconds: their usual answers are not told
KEY = "vkprefill.request"  # of the ASGI scope


@dataclass
class RequestRecord:
    """status: of HTTP, 499 where the client left; first_token_s: from the start, None before it; answer: the figures of
    what completions answer, None for other requests."""

    id: str
    method: str
    path: str
    started: float = field(default_factory=monotonic)
    status: int = 0
    first_token_s: float | None = None
    answer: dict[str, object] | None = None

    @property
    def duration_s(self) -> float:
        return monotonic() - self.started

    def first_token(self) -> None:
        """A piece of the answer came; only the first counts."""
        if self.first_token_s is None:
            self.first_token_s = self.duration_s

    def waited(self, seconds: float) -> None:
        """A prompt of it was in the queue for so long."""
        self._add({"queue_ms": seconds * 1e3})

    def answered(self, done: Done) -> None:
        """A prompt of it was answered; there may be several."""
        timings = done.timings
        self._add(
            {
                "prompt_tokens": done.specprefill["prompt_n"],
                "cached_tokens": timings["cache_n"],
                "answer_tokens": timings["predicted_n"],
                "prompt_ms": timings["prompt_ms"],
                "answer_ms": timings["predicted_ms"],
            }
        )
        self.answer |= {"finish_reason": done.finish_reason, "specprefill": done.specprefill["status"]}

    def _add(self, figures: dict[str, float]) -> None:
        self.answer = self.answer or {}
        for name, value in figures.items():
            self.answer[name] = self.answer.get(name, 0) + value

    def fields(self) -> dict[str, object]:
        """For the log; milliseconds as whole numbers."""
        found = {"id": self.id, "method": self.method, "path": printable(self.path, 200), "status": self.status}
        if self.first_token_s is not None:
            found["first_token_ms"] = self.first_token_s * 1e3
        found |= {**(self.answer or {}), "duration_ms": self.duration_s * 1e3}
        return {name: round(value) if isinstance(value, float) else value for name, value in found.items()}


class RequestLog:
    """The outermost ASGI application: gives each request its record, and tells it."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        request_id = given if GIVEN_ID.fullmatch(given) else uuid.uuid4().hex
        record = scope[KEY] = RequestRecord(request_id, scope["method"], scope["path"])

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                headers = [*message.get("headers", ()), (HEADER.lower().encode(), record.id.encode())]
                message = {**message, "headers": headers}
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        finally:
            if record.path not in PROBES or record.status not in (200, 503):
                line = f"{record.method} {printable(record.path)}: {record.status} in {record.duration_s:.3f} s"
                log.info("%s", line, extra={"fields": record.fields()})
