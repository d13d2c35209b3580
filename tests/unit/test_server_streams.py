"""Streams of the routes with a scripted engine: order, what comes while nothing comes, errors in the midst."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace

import anyio
import pytest

from tests.unit.scripted_server import HELLO, REPORT, TIMINGS, ScriptedRun, events
from vkprefill.server.api_error import ApiError
from vkprefill.server.engine.jobs import Done, Piece, Progress, Queued
from vkprefill.server.http.app import build_app
from vkprefill.server.http.completions import Service


def test_order_of_a_stream(send):
    chunks = events(
        send("POST", "/v1/chat/completions", json={"messages": HELLO, "stream": True, "return_progress": True})
    )
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[1]["prompt_progress"] == {
        "total": 10,
        "cache": 4,
        "processed": 6,
        "time_ms": 0.5,
        "stage": "score",
        "turns": 1,
        "share": 1.0,
        "wait_ms": 0.0,
    }
    assert [c["choices"][0]["delta"] for c in chunks[2:]] == [{"content": "Hello"}, {"content": " there"}, {}]
    assert chunks[-1]["usage"]["total_tokens"] == 15 and len({c["id"] for c in chunks}) == 1


def test_usage_in_a_chunk_of_its_own(send):
    body = {"messages": HELLO, "stream": True, "stream_options": {"include_usage": True}}
    *_, before, last = events(send("POST", "/v1/chat/completions", json=body))
    assert "usage" not in before and before["choices"][0]["finish_reason"] == "stop"
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 5


class Silent:
    """A job of which nothing comes until the test says so: an async iterator."""

    def __init__(self) -> None:
        self.waited_s = None
        self.events: asyncio.Queue[object] = asyncio.Queue()

    def __aiter__(self) -> "Silent":
        return self

    async def __anext__(self) -> object:
        event = await self.events.get()
        if isinstance(event, ApiError):
            raise event
        return event

    async def aclose(self) -> None:
        pass


def sent_by(service: Service, path: str, body: dict[str, object], react: Callable[[str], None]) -> str:
    """The text of a stream; react: called with what has come so far after each part."""

    async def exchange() -> str:
        text = ""

        async def send(message: dict[str, object]) -> None:
            nonlocal text
            assert message.get("status", 200) == 200
            text += message.get("body", b"").decode()
            react(text)

        async def receive() -> dict[str, object]:
            if messages:
                return messages.pop()
            await anyio.sleep_forever()

        messages = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
        scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b""}
        with anyio.fail_after(60):
            await build_app(service)(scope, receive, send)
        return text

    return anyio.run(exchange)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("end", [Done(1, "stop", TIMINGS, REPORT), ApiError(400, "kept_ranges: no", param="x")])
def test_stream_speaks_from_its_beginning(service, engine, path, end):
    """Status and first chunk at once, comments while nothing comes, places in the queue where asked for, and errors
    of the engine as events."""
    run = Silent()
    engine.run = lambda job: run
    steps = iter([Queued(1, 2, 10, 7.5), Progress(1, "score", 2, 6, 4, 0.5), Piece(1, "Hi"), end])
    pings = 0

    def react(text: str) -> None:
        nonlocal pings
        if text.count(": ping\n\n") > pings:  # the next event comes after a comment
            pings += 1
            run.events.put_nowait(next(steps))

    body = {"messages": HELLO, "prompt": "Hi", "stream": True, "return_progress": True}
    text = sent_by(replace(service, ping_s=0.01), path, body, react)
    parts = [part for part in text.split("\n\n") if part]
    if "chat" in path:
        assert '"role":"assistant"' in parts.pop(0)
    assert parts[0] == ": ping" and parts.count(": ping") >= 4 and parts[-1] == "data: [DONE]"
    chunks = [json.loads(part[6:]) for part in parts if part.startswith("data: {")]
    assert chunks[0]["prompt_progress"] == {
        "total": 10,
        "cache": 0,
        "processed": 0,
        "time_ms": 7.5,
        "stage": "queue",
        "queue_position": 2,
    }
    assert chunks[1]["prompt_progress"]["stage"] == "score"
    if isinstance(end, ApiError):
        assert chunks[-1]["error"]["message"] == "kept_ranges: no"
    else:
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_places_only_where_asked_for(service, engine):
    run = Silent()
    engine.run = lambda job: run
    for event in (Queued(1, 2, 10, 7.5), Done(1, "stop", TIMINGS, REPORT)):
        run.events.put_nowait(event)
    assert "queue" not in sent_by(service, "/v1/completions", {"prompt": "Hi", "stream": True}, lambda text: None)


def test_error_in_the_midst_of_a_stream(send, engine):
    engine.error = ApiError(500, "the device was lost")
    *_, last = events(send("POST", "/v1/chat/completions", json={"messages": HELLO, "stream": True}))
    assert last["error"]["message"] == "the device was lost" and last["error"]["type"] == "server_error"
    assert send("POST", "/v1/chat/completions", json={"messages": HELLO}).status_code == 500


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_what_is_refused_before_the_prompt_is_read_is_no_stream(send, engine, path):
    async def refused(job: object):
        raise ApiError(400, "check: no room for a second cache")
        yield

    engine.run = lambda job: ScriptedRun(refused(job))
    answer = send("POST", path, json={"messages": HELLO, "prompt": "Hi", "stream": True})
    assert answer.status_code == 400 and answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]["message"] == "specprefill.check: no room for a second cache"


def test_stream_that_hears_much_and_says_nothing_sends_comments(service, engine):
    """A prompt that is read for long: its progress comes often, but the request did not ask for it."""
    pings = 0

    class Chatty(Silent):
        async def __anext__(self) -> object:
            await anyio.sleep(0.001)
            return Progress(1, "prefill", 2, 6, 4, 0.5) if pings < 2 else Done(1, "stop", TIMINGS, REPORT)

    def count(text: str) -> None:
        nonlocal pings
        pings = text.count(": ping\n\n")

    engine.run = lambda job: Chatty()
    body = {"messages": HELLO, "stream": True}
    text = sent_by(replace(service, ping_s=0.02), "/v1/chat/completions", body, count)
    assert text.count(": ping\n\n") >= 2 and text.endswith("data: [DONE]\n\n")
