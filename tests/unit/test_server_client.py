"""The queue before the engine, with an engine that the test plays."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

anyio = pytest.importorskip("anyio")

from vkprefill.server.api_error import ApiError  # noqa: E402
from vkprefill.server.engine.client import EngineClient  # noqa: E402
from vkprefill.server.engine.jobs import CANCELLED, Cancel, Done, EngineOptions, Failed, Job, Piece, Ready  # noqa: E402

PATIENCE_S = 60  # only what hangs takes longer
JOB = Job(0, (1, 2))


class Played(EngineClient):
    """Notes what is sent; the test puts the events."""

    def __init__(self, max_waiting: int = 2) -> None:
        options = EngineOptions(Path("x.gguf"), None, None)
        super().__init__(options, max_waiting=max_waiting, on_ready=print, on_failure=print)
        self.ready = Ready("a device", 512, 64)
        self.sent: list[object] = []

    def _send(self, message: object) -> None:
        self.sent.append(message)

    async def until_sent(self, count: int) -> None:
        with anyio.fail_after(PATIENCE_S):
            while len(self.sent) < count:
                await asyncio.sleep(0.001)

    def put(self, event: object) -> None:
        self._events.put_nowait(event)


async def collect(events: AsyncIterator[object]) -> list[object]:
    async with contextlib.aclosing(events):
        return [event async for event in events]


def done(job_id: int) -> Done:
    return Done(job_id, "stop", {}, {})


def test_jobs_take_their_turns():
    async def scenario() -> None:
        client = Played()
        tasks = [asyncio.create_task(collect(client.run(JOB))) for _ in range(3)]
        for number in (1, 2, 3):
            await client.until_sent(number)
            assert client.sent[-1].job_id == number and (client.running, client.waiting) == (1, 3 - number)
            client.put(Piece(number, "x"))
            client.put(done(number))
            assert await tasks[number - 1] == [Piece(number, "x"), done(number)]
        assert client.running == 0

    asyncio.run(scenario())


def test_full_queue():
    async def scenario() -> None:
        client = Played(max_waiting=1)
        tasks = [asyncio.create_task(collect(client.run(JOB))) for _ in range(2)]
        await client.until_sent(1)
        with pytest.raises(ApiError, match="1 requests are waiting") as refused:
            await collect(client.run(JOB))
        assert refused.value.status == 503 and refused.value.headers()["Retry-After"] == "2"
        for number in (1, 2):
            await client.until_sent(number)
            client.put(done(number))
            await tasks[number - 1]

    asyncio.run(scenario())


def test_cancelled_job_is_stopped_before_the_next_begins():
    async def scenario() -> None:
        client = Played()
        first, second = (asyncio.create_task(collect(client.run(JOB))) for _ in range(2))
        await client.until_sent(1)
        first.cancel()
        await client.until_sent(2)
        assert client.sent[1] == Cancel(1)
        await asyncio.sleep(0.02)
        assert len(client.sent) == 2, "the engine is still at the first"
        client.put(Piece(1, "late"))
        client.put(Failed(1, CANCELLED, "cancelled"))
        await client.until_sent(3)
        client.put(done(2))
        assert await second == [done(2)] and first.cancelled()

    asyncio.run(scenario())


def test_cancelled_in_the_queue():
    async def scenario() -> None:
        client = Played()
        first, second = (asyncio.create_task(collect(client.run(JOB))) for _ in range(2))
        await client.until_sent(1)
        second.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await second
        assert client.waiting == 0
        client.put(done(1))
        await first
        assert len(client.sent) == 1

    asyncio.run(scenario())


def test_cancelled_at_any_moment():
    """After however many steps of the event loop a job is cancelled, the next one is served."""

    async def scenario(steps: int) -> None:
        client = Played()
        job = asyncio.create_task(collect(client.run(JOB)))
        for _ in range(steps):
            await asyncio.sleep(0)
        job.cancel()
        following = asyncio.create_task(collect(client.run(JOB)))
        while not following.done():
            await asyncio.sleep(0.001)
            for message in list(client.sent):
                client.sent.remove(message)
                if isinstance(message, Cancel):
                    client.put(Failed(message.job_id, CANCELLED, "cancelled"))
                elif not job.done() and message.job_id == 1:
                    continue
                else:
                    client.put(done(message.job_id))
        assert isinstance(following.result()[-1], Done)

    for steps in range(12):
        asyncio.run(asyncio.wait_for(scenario(steps), PATIENCE_S))


def test_failures():
    async def scenario() -> None:
        client = Played()
        for status, retry in ((400, None), (503, "1")):
            client.sent.clear()
            job = asyncio.create_task(collect(client.run(JOB)))
            await client.until_sent(1)
            client.put(Failed(client.sent[0].job_id, status, "why"))
            with pytest.raises(ApiError, match="why") as failed:
                await job
            assert failed.value.status == status and failed.value.headers().get("Retry-After") == retry

    asyncio.run(scenario())


def test_not_ready():
    async def scenario() -> None:
        client = Played()
        client.ready, client.stage = None, "loading weights 40 %"
        with pytest.raises(ApiError, match="loading weights 40 %") as refused:
            await collect(client.run(JOB))
        assert refused.value.status == 503 and refused.value.code == "loading"

    asyncio.run(scenario())
