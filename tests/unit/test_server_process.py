"""The engine's process from outside, with one that answers without a GPU."""

import asyncio
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

anyio = pytest.importorskip("anyio")

from vkprefill.server.api_error import ApiError  # noqa: E402
from vkprefill.server.engine.client import EngineClient  # noqa: E402
from vkprefill.server.engine.jobs import Done, EngineOptions, Job, Piece, Ready, Stop  # noqa: E402

PATIENCE_S = 60  # only what hangs takes longer


def engine(options: EngineOptions, connection: Connection) -> None:
    """Answers a prompt with the number of its tokens and its process id; prompts of one token never."""
    connection.send(Ready("no device", 512, 64, "full"))
    while not isinstance(message := connection.recv(), Stop):
        if isinstance(message, Job) and len(message.token_ids) > 1:
            connection.send(Piece(message.job_id, f"{len(message.token_ids)} {os.getpid()}"))
            connection.send(Done(message.job_id, "stop", {}, {}))


@pytest.fixture
def client(monkeypatch) -> EngineClient:
    monkeypatch.setattr("vkprefill.server.engine.process.run_engine", engine)
    monkeypatch.setattr("vkprefill.server.engine.client.WATCH_PAUSE_S", 0.01)
    return EngineClient(
        EngineOptions(Path("x.gguf"), None, None), max_waiting=2, on_ready=lambda _: None, on_failure=lambda: None
    )


async def ready(client: EngineClient) -> None:
    with anyio.fail_after(PATIENCE_S):
        while client.ready is None:
            await asyncio.sleep(0.01)


async def answer(client: EngineClient, num_tokens: int) -> tuple[int, int]:
    """What the engine says of a prompt: its tokens, and the engine's process id."""
    with anyio.fail_after(PATIENCE_S):
        events = [event async for event in client.run(Job(0, (1,) * num_tokens))]
    assert isinstance(events[-1], Done)
    return tuple(map(int, events[0].text.split()))


@pytest.mark.parametrize("num_tokens", [1, 300_000])
def test_stopped_engine_is_ended_and_started_again(client, num_tokens):
    """Also where the job is larger than the pipe, so that it is never read whole."""

    async def scenario() -> None:
        client.start()
        await ready(client)
        _, pid = await answer(client, 5)
        os.kill(pid, signal.SIGSTOP)
        client._hung_after_s = 0.2
        hung = client.run(Job(0, (1,) * num_tokens))
        with anyio.fail_after(PATIENCE_S), pytest.raises(ApiError, match="no sign of life for 0.2 s") as failed:
            await anext(hung)
        assert failed.value.status == 503 and client.ready is None and client.lost, "it did not come to the job"
        client._hung_after_s = 0
        await ready(client)
        num, other = await answer(client, 300_000)
        assert num == 300_000 and other != pid
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        await client.stop()
        with pytest.raises(ProcessLookupError):
            os.kill(other, 0)

    asyncio.run(scenario())


def test_what_is_sent_to_an_engine_that_was_killed_may_be_sent_again(client):
    async def scenario() -> None:
        client.start()
        await ready(client)
        _, pid = await answer(client, 5)
        os.kill(pid, signal.SIGKILL)
        with anyio.fail_after(PATIENCE_S), pytest.raises(ApiError) as failed:
            await answer(client, 5)
        assert failed.value.status == 503 and failed.value.headers()["Retry-After"]
        await ready(client)
        assert (await answer(client, 5))[1] != pid
        await client.stop()

    asyncio.run(scenario())


def test_stop_does_not_wait_for_an_engine_that_reads_nothing(client, monkeypatch):
    monkeypatch.setattr("vkprefill.server.engine.process.STOP_S", 0.1)

    async def scenario() -> None:
        client.start()
        await ready(client)
        _, pid = await answer(client, 5)
        os.kill(pid, signal.SIGSTOP)
        run = client.run(Job(0, (1,) * 300_000))
        with anyio.fail_after(PATIENCE_S):
            await client.stop()
            with pytest.raises(ApiError, match="the server is stopping"):
                await anext(run)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    asyncio.run(scenario())
