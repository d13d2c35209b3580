"""The end of the server, by sockets of this machine: what is in work is finished, or cut. No GPU."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

pytest.importorskip("uvicorn")

from tests.unit.test_server_connections import END, GET, MANY, PATIENCE_S, App, Client, until  # noqa: E402
from vkprefill.server.http import draining  # noqa: E402
from vkprefill.server.http.connections import server_config  # noqa: E402
from vkprefill.server.http.draining import DrainingServer  # noqa: E402

SLOW, BIG = GET.replace(b"quick", b"slow"), GET.replace(b"quick", b"big")
NEVER_S = 10 * PATIENCE_S


@asynccontextmanager
async def serving(drain_s: float) -> AsyncIterator[tuple[App, DrainingServer, asyncio.Task, Callable, list[int]]]:
    app, cuts, listener = App(), [], socket.create_server(("127.0.0.1", 0))

    async def cut() -> None:
        cuts.append(1)
        app.release.set()

    server = DrainingServer(server_config(app, MANY), drain_s, cut)
    task = asyncio.create_task(server._serve([listener]))  # without its handlers of this process's signals
    address, clients = listener.getsockname(), []

    async def ask(request: bytes) -> Client:
        client = Client(*await asyncio.open_connection(*address))
        clients.append(client)
        await client.send(request)
        return client

    try:
        yield app, server, task, ask, cuts
        await asyncio.wait_for(task, PATIENCE_S)
        with pytest.raises(OSError):
            await asyncio.open_connection(*address)
    finally:
        app.release.set()
        for client in clients:
            client.writer.close()


def test_answers_in_work_are_finished():
    async def scenario() -> None:
        async with serving(NEVER_S) as (app, server, task, ask, cuts):
            idle, slow = await ask(GET), await ask(SLOW)
            await idle.until(END)
            await until(lambda: app.started == 2)
            server.handle_exit(signal.SIGTERM, None)
            assert await idle.rest() == b"", "it is closed at once"
            assert not task.done()
            app.release.set()
            assert b"200 OK" in await slow.until(END)
        assert cuts == []

    asyncio.run(scenario())


@pytest.mark.parametrize(("drain_s", "signals"), [(0, 1), (NEVER_S, 2)])
def test_answers_are_cut(drain_s, signals):
    """After their time, or at the second signal: by what ends them, so that they end as answers do."""

    async def scenario() -> None:
        async with serving(drain_s) as (app, server, _, ask, cuts):
            slow = await ask(SLOW)
            await until(lambda: app.started == 1)
            for _ in range(signals):
                server.handle_exit(signal.SIGTERM, None)
            assert (await slow.rest()).endswith(END)
        assert cuts == [1]

    asyncio.run(scenario())


def test_who_does_not_read_is_left(monkeypatch):
    monkeypatch.setattr(draining, "LAST_WORDS_S", 0.01)

    async def scenario() -> None:
        async with serving(0) as (app, server, _, ask, _):
            await ask(BIG)
            await until(lambda: app.started == 1)
            server.handle_exit(signal.SIGTERM, None)
        assert app.ended == 1, "sending to nobody ends"

    asyncio.run(scenario())
