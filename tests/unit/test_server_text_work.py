"""How much work on text there is at a time, and how many bodies."""

import threading
from collections.abc import Callable

import pytest

anyio = pytest.importorskip("anyio")
pytest.importorskip("starlette")

from starlette.datastructures import Headers  # noqa: E402

from vkprefill.server.api_error import ApiError  # noqa: E402
from vkprefill.server.http import text_work  # noqa: E402
from vkprefill.server.http.text_work import LONG_BYTES, TextWork  # noqa: E402
from vkprefill.server.http.wire import ClientLeft  # noqa: E402

PATIENCE_S = 60  # only what hangs takes longer
SHORT, LONG = b"s", b"l" * LONG_BYTES


class Client:
    """Sends a body in parts; `leave` closes the connection. A `receive` of ASGI."""

    def __init__(self, *parts: bytes, complete: bool = True) -> None:
        self._messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
        self._messages[-1]["more_body"] = not complete
        self.leave = anyio.Event()

    async def __call__(self) -> dict[str, object]:
        if self._messages:
            return self._messages.pop(0)
        await self.leave.wait()
        return {"type": "http.disconnect"}


class Work:
    """Takes a body, notes it, and waits for `go`."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.go = threading.Event()

    def __call__(self, body: bytes) -> int:
        self.begun.append(len(body))
        assert self.go.wait(PATIENCE_S)
        return len(body)


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE_S):
        while not condition():
            await anyio.sleep(0.001)


def refusal(text: TextWork, work: Work, *parts: bytes, complete: bool = True) -> Callable:
    """A request that must be refused."""

    async def refused() -> ApiError:
        with anyio.fail_after(PATIENCE_S), pytest.raises(ApiError) as error:
            await text.on_body(Headers(), Client(*parts, complete=complete), work)
        return error.value

    return refused


def test_few_at_a_time_and_the_rest_waits(monkeypatch):
    """One long body and two short ones, which do not wait for the long ones; beyond a number they are refused."""
    monkeypatch.setattr(text_work, "MAX_WAITING", 3)

    async def scenario() -> None:
        text, work, results = TextWork(PATIENCE_S), Work(), []

        async def one(body: bytes) -> None:
            results.append(await text.on_body(Headers(), Client(body[:1], body[1:]), work))

        async with anyio.create_task_group() as group:
            for body, at_once in ((LONG, 1), (SHORT, 2)):
                before = len(work.begun)
                for _ in range(at_once + 3):
                    group.start_soon(one, body)
                await until(lambda n=before + at_once: len(work.begun) == n)
                limiter = text._long if body is LONG else text._short
                await until(lambda limiter=limiter: limiter.statistics().tasks_waiting == 3)
                error = await refusal(text, work, body)()
                assert error.status == 503 and error.headers()["Retry-After"] == "1"
                assert len(work.begun) == before + at_once
            work.go.set()
        assert sorted(results) == [1] * 5 + [len(LONG)] * 4 and text._bodies_bytes == 0

    anyio.run(scenario)


def test_bodies_in_memory_are_bounded(monkeypatch):
    """Those that are still coming count as well; what ends, in whatever way, makes room."""
    monkeypatch.setattr(text_work, "MAX_BODIES_BYTES", 100)

    async def scenario() -> None:
        text, work = TextWork(PATIENCE_S), Work()
        slow = Client(b"x" * 60, complete=False)

        async def left() -> None:
            with pytest.raises(ClientLeft):
                await text.on_body(Headers(), slow, work)

        async with anyio.create_task_group() as group:
            group.start_soon(left)
            await until(lambda: text._bodies_bytes == 60)
            error = await refusal(text, work, b"x" * 30, b"x" * 11)()
            assert error.status == 503 and error.headers()["Connection"] == "close"
            assert text._bodies_bytes == 60
            slow.leave.set()
        work.go.set()
        assert await text.on_body(Headers(), Client(b"x" * 100), work) == 100 and text._bodies_bytes == 0

    anyio.run(scenario)


def test_client_that_leaves_while_it_waits():
    async def scenario() -> None:
        text, work = TextWork(PATIENCE_S), Work()
        waiting = Client(LONG)

        async def first() -> None:
            await text.on_body(Headers(), Client(LONG), work)

        async with anyio.create_task_group() as group:
            group.start_soon(first)
            await until(lambda: len(work.begun) == 1)
            waiting.leave.set()
            with anyio.fail_after(PATIENCE_S), pytest.raises(ClientLeft):
                await text.on_body(Headers(), waiting, work)
            work.go.set()
        assert len(work.begun) == 1 and text._bodies_bytes == 0

    anyio.run(scenario)
