"""Connections that are silent, half-sent, unread or too many, by sockets of this machine. No GPU."""

import asyncio
import logging
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

uvicorn = pytest.importorskip("uvicorn")

from uvicorn.protocols.http.flow_control import FlowControl  # noqa: E402
from uvicorn.server import ServerState  # noqa: E402

from vkprefill.server.http import connections  # noqa: E402
from vkprefill.server.http.connections import Limits, NoRepeats, most_connections, server_config  # noqa: E402

PATIENCE_S = 60  # only what hangs takes longer
END = b"done\r\n0\r\n\r\n"
GET = b"GET /quick HTTP/1.1\r\nHost: localhost\r\n\r\n"
BIG = b"x" * 2**20
MANY = Limits(most=1000, header_s=3600, idle_s=3600, unread_s=3600)


class App:
    """Answers /quick at once, /slow when `release` is set, /big with more than any buffer holds."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.started = self.ended = 0

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] == "lifespan":
            for _ in range(2):
                kind = (await receive())["type"]
                await send({"type": f"{kind}.complete"})
            return
        self.started += 1
        if scope["path"] == "/slow":
            await self.release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(64 if scope["path"] == "/big" else 0):
            await send({"type": "http.response.body", "body": BIG, "more_body": True})
        await send({"type": "http.response.body", "body": b"done"})
        self.ended += 1


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def until(self, wanted: bytes) -> bytes:
        return await asyncio.wait_for(self.reader.readuntil(wanted), PATIENCE_S)

    async def rest(self) -> bytes:
        """What comes until the server closes."""
        try:
            return await asyncio.wait_for(self.reader.read(), PATIENCE_S)
        except ConnectionResetError:
            return b""


@asynccontextmanager
async def serving(limits: Limits) -> AsyncIterator[tuple[App, Callable[[], Awaitable[Client]]]]:
    """The app, and what makes a connection to it."""
    app, listener = App(), socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(server_config(app, limits))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    address, clients = listener.getsockname(), []

    async def connect() -> Client:
        clients.append(Client(*await asyncio.open_connection(*address)))
        return clients[-1]

    try:
        yield app, connect
    finally:
        app.release.set()
        for client in clients:
            client.writer.close()
        server.should_exit = True
        await asyncio.wait_for(task, PATIENCE_S)


async def until(condition: Callable[[], bool]) -> None:
    async def wait() -> None:
        while not condition():
            await asyncio.sleep(0.001)

    await asyncio.wait_for(wait(), PATIENCE_S)


def test_silent_connections_make_room():
    """The one that has been silent longest goes; those with a request in work stay."""

    async def scenario() -> None:
        async with serving(Limits(most=4, header_s=3600, idle_s=3600)) as (app, connect):
            busy = await connect()
            await busy.send(GET.replace(b"quick", b"slow"))
            await until(lambda: app.started == 1)
            used = await connect()
            await used.send(GET)
            await used.until(END)
            silent = [await connect() for _ in range(2)]
            await silent[1].send(b"GET /quick HTTP/1.1\r\n")
            for _ in range(20):
                last = await connect()
                await last.send(GET)
                await last.until(END)
            assert [await one.rest() for one in (used, *silent)] == [b"", b"", b""]
            app.release.set()
            assert b"200 OK" in await busy.until(END)

    asyncio.run(scenario())


def test_no_room_is_said():
    async def scenario() -> None:
        async with serving(Limits(most=2, header_s=3600, idle_s=3600)) as (app, connect):
            busy = [await connect() for _ in range(2)]
            for one in busy:
                await one.send(GET.replace(b"quick", b"slow"))
            await until(lambda: app.started == 2)
            refused = await (await connect()).rest()
            assert refused.startswith(b"HTTP/1.1 503 ") and b"2 connections are open" in refused
            app.release.set()
            for one in busy:
                await one.until(END)
            again = await connect()
            await again.send(GET)
            assert b"200 OK" in await again.until(END)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"", b""),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"HTTP/1.1 408 "),
        (b"POST /quick HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n12", b"HTTP/1.1 200 "),  # no rest comes
        (GET + b"GET", b"HTTP/1.1 200 "),
    ],
)
def test_what_is_not_completed_ends(sent, answer):
    async def scenario() -> None:
        async with serving(Limits(most=9, header_s=0.2, idle_s=0.2)) as (_, connect):
            client = await connect()
            await client.send(sent)
            received = await client.rest()
            assert received.startswith(answer) and bool(received) == bool(answer)

    asyncio.run(scenario())


@pytest.mark.parametrize("before", [b"", GET])
def test_bytes_do_not_put_the_end_off(before):
    """Headers that come byte by byte, on a new connection and after an answer."""

    async def scenario() -> None:
        async with serving(Limits(most=9, header_s=0.3, idle_s=3600)) as (_, connect):
            client = await connect()
            await client.send(before)
            if before:
                await client.until(END)
            await client.send(b"GET /")

            async def drip() -> None:
                while True:
                    await client.send(b"a")
                    await asyncio.sleep(0.01)

            dripping = asyncio.create_task(drip())
            assert (await client.rest()).startswith(b"HTTP/1.1 408 ")
            dripping.cancel()
            await asyncio.wait([dripping])

    asyncio.run(scenario())


def test_work_is_not_timed():
    """Neither a request in work nor the next one on the same connection."""

    async def scenario() -> None:
        async with serving(Limits(most=9, header_s=0.1, idle_s=3600)) as (app, connect):
            client = await connect()
            await client.send(GET.replace(b"quick", b"slow"))
            await asyncio.sleep(0.3)
            app.release.set()
            await client.until(END)
            await asyncio.sleep(0.3)
            await client.send(GET)
            assert b"200 OK" in await client.until(END)

    asyncio.run(scenario())


def test_unread_answers_end():
    async def scenario() -> None:
        async with serving(Limits(most=9, unread_s=0.2)) as (app, connect):
            client = await connect()
            await client.send(GET.replace(b"quick", b"big"))
            await until(lambda: app.ended == 1)  # what is sent to a closed connection goes nowhere

    asyncio.run(scenario())


def test_slow_readers_are_left_alone():
    """As long as they read: the connection ends the first time that nothing was taken."""

    class Transport:
        unread, looks, aborted_after = [9, 8, 7, 7], 0, None

        def get_write_buffer_size(self) -> int:
            self.looks += 1
            return self.unread[self.looks - 1]

        def abort(self) -> None:
            self.aborted_after = self.looks

    async def scenario() -> None:
        config = server_config(App(), Limits(most=9, unread_s=0.001))
        connection = connections.Connection(config.http.args[0], config, ServerState(), {})
        connection.transport, connection.flow = Transport(), FlowControl(Transport())
        connection.pause_writing()
        await until(lambda: connection.transport.aborted_after is not None)
        assert connection.transport.aborted_after == 4

    asyncio.run(scenario())


def test_most_connections_fit_the_descriptors(monkeypatch):
    for soft, most in ((200, 72), (100, 1), (100_000, 1000), (resource.RLIM_INFINITY, 1000)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert most_connections() == most


def test_log_tells_a_thing_once(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(connections.time, "monotonic", lambda: now[0])

    def record(message: str, error: Exception | None = None) -> logging.LogRecord:
        return logging.LogRecord("asyncio", logging.ERROR, "f", 1, message, (), error and (type(error), error, None))

    quiet = NoRepeats()
    assert [bool(quiet.filter(record("full", OSError(24, "files")))) for _ in range(1000)] == [True] + 999 * [False]
    assert quiet.filter(record("full", OSError(12, "memory"))) and quiet.filter(record("other"))
    now[0] = 61.0
    assert quiet.filter(record("full", OSError(24, "files")))
