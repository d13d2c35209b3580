"""The queue before the engine, with an engine that the test plays."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

anyio = pytest.importorskip("anyio")

from vkprefill.server.api_error import ApiError  # noqa: E402
from vkprefill.server.engine.client import EngineClient  # noqa: E402
from vkprefill.server.engine.jobs import (  # noqa: E402
    CANCELLED,
    Alive,
    Cancel,
    Done,
    EngineOptions,
    Failed,
    Job,
    Loading,
    Piece,
    Queued,
    Ready,
    Standing,
    Standings,
    Stop,
)

PATIENCE_S = 60  # only what hangs takes longer
JOB = Job(0, (1, 2))


class Played(EngineClient):
    """Notes what is sent; the test puts the events."""

    def __init__(self, max_waiting: int = 2, turns: int = 1) -> None:
        options = EngineOptions(Path("x.gguf"), None, None, turns=turns)
        super().__init__(options, max_waiting=max_waiting, on_ready=print, on_failure=print)
        self.ready = Ready("a device", 512, 64, "full")
        self.sent: list[object] = []
        self.put = self._take

    def _send(self, message: object) -> None:
        self.sent.append(message)

    async def until_sent(self, count: int) -> None:
        await until(lambda: len(self.sent) >= count)


async def collect(client: EngineClient) -> list[object]:
    """What comes of a job but its places in the queue."""
    return await collect_run(client.run(JOB))


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)


def done(job_id: int) -> Done:
    return Done(job_id, "stop", {}, {})


def test_jobs_take_their_turns():
    async def scenario() -> None:
        client = Played()
        tasks = [asyncio.create_task(collect(client)) for _ in range(3)]
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
        tasks = [asyncio.create_task(collect(client)) for _ in range(2)]
        await client.until_sent(1)
        with pytest.raises(ApiError, match="1 requests are waiting") as refused:
            await collect(client)
        assert refused.value.status == 503 and refused.value.headers()["Retry-After"] == "2"
        for number in (1, 2):
            await client.until_sent(number)
            client.put(done(number))
            await tasks[number - 1]

    asyncio.run(scenario())


def test_cancelled_job_is_stopped_before_the_next_begins():
    async def scenario() -> None:
        client = Played()
        first, second = (asyncio.create_task(collect(client)) for _ in range(2))
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
        first, second = (asyncio.create_task(collect(client)) for _ in range(2))
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
        job = asyncio.create_task(collect(client))
        for _ in range(steps):
            await asyncio.sleep(0)
        job.cancel()
        following = asyncio.create_task(collect(client))
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
            job = asyncio.create_task(collect(client))
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
            await collect(client)
        assert refused.value.status == 503 and refused.value.code == "loading"

    asyncio.run(scenario())


def test_places_in_the_queue():
    async def scenario() -> None:
        client = Played(max_waiting=3)
        first, second, third, fourth = (client.run(JOB) for _ in range(4))
        client.put(done(1))
        await third.aclose()
        client.put(done(2))
        client.put(done(4))
        for run, places in ((first, []), (second, [1]), (fourth, [3, 2, 1])):
            *queued, _ = [event async for event in run]
            assert [event.ahead for event in queued] == places and {event.total for event in queued} <= {2}
        assert (client.running, client.waiting) == (0, 0)

    asyncio.run(scenario())


def test_turn_ends_with_the_engine_not_with_the_reader():
    """An answer that nobody reads waits; the next job has its turn."""

    async def scenario() -> None:
        client = Played()
        first, second = client.run(JOB), client.run(JOB)
        for number in range(1000):
            client.put(Piece(1, str(number)))
        client.put(done(1))
        assert client.sent[-1].job_id == 2 and (client.running, client.waiting) == (1, 0)
        client.put(done(2))
        assert [event async for event in second][-1] == done(2)
        assert [event async for event in first] == [*(Piece(1, str(n)) for n in range(1000)), done(1)]
        await first.aclose()
        assert client.sent[2:] == [], "nothing to cancel"

    asyncio.run(scenario())


def standing(job_id: int, place: int) -> Standing:
    return Standing(job_id, "decode", 9, 9, 3, place, 0.5, 10.0, 20.0, 4)


def test_several_at_a_time():
    """As many as there are turns, each in a slot; one that ends makes room for the next, whatever the others do."""

    async def scenario() -> None:
        client = Played(max_waiting=3, turns=2)
        first, second, third, fourth = (client.run(JOB) for _ in range(4))
        assert [message.job_id for message in client.sent] == [1, 2] and (client.running, client.waiting) == (2, 2)
        client.put(Standings((standing(2, 0), standing(1, 1), standing(77, 2)), 12))
        assert [run.standing.place for run in client.slots] == [1, 0] and client.changes == 12
        client.put(Piece(2, "x"))
        client.put(done(2))
        assert client.sent[-1].job_id == 3 and client.sent[-1].queued_ms > 0 and client.slots == [first, third]
        client.abandon(first)
        assert client.sent[-1] == Cancel(1) and client.slots == [first, third], "until the engine has stopped it"
        client.put(Failed(1, CANCELLED, "cancelled"))
        assert client.slots == [fourth, third] and first.slot is None
        assert [event.ahead for event in [await anext(third), await anext(fourth)]] == [1, 2]
        client._fail_in_hand(500, "lost")
        for run in (third, fourth):
            with pytest.raises(ApiError, match="lost"):
                [event async for event in run]
        assert client.slots == [None, None] and [event async for event in second] == [Piece(2, "x"), done(2)]

    asyncio.run(scenario())


class Process:
    """In place of EngineProcess: the test says what it does."""

    made: list["Process"]

    def __init__(self, options: EngineOptions, take: Callable[[object], None]) -> None:
        self.take, self.sent, self.killed, self.ended = take, [], False, asyncio.Event()
        self.made.append(self)

    async def start(self) -> None:
        pass

    def send(self, message: object) -> None:
        self.sent.append(message)

    def kill(self) -> None:
        self.killed = True
        self.ended.set()

    async def stop(self) -> None:
        self.send(Stop())


@pytest.fixture
def processes(monkeypatch) -> list[Process]:
    Process.made = []
    monkeypatch.setattr("vkprefill.server.engine.client.EngineProcess", Process)
    monkeypatch.setattr("vkprefill.server.engine.client.WATCH_PAUSE_S", 0.001)
    return Process.made


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """The seconds that the client sees, in a list of one."""
    now = [100.0]
    monkeypatch.setattr("vkprefill.server.engine.client.monotonic", lambda: now[0])
    return now


def test_engine_that_hangs_is_ended_and_built_again(processes, clock):
    async def scenario() -> None:
        failures = []
        client = EngineClient(
            EngineOptions(Path("x.gguf"), None, None, turns=1),
            max_waiting=2,
            on_ready=lambda _: None,
            on_failure=lambda: failures.append(True),
            hung_after_s=30,
        )
        client.start()
        await until(lambda: len(processes) == 1)
        first = processes[0]
        first.take(Loading("weights"))
        first.take(Ready("a device", 512, 64, "full"))
        clock[0] += 1000  # nothing to do is no reason
        await asyncio.sleep(0.05)
        assert not first.killed
        hung, waiting = client.run(JOB), client.run(JOB)
        begun = Standings((Standing(1, "prefill", 0, 2, 0, 0, 1.0, 0.0, 0.0, 0),), 0)
        for sign in (begun, Alive(), Piece(1, "x"), Piece(99, "of another")):
            clock[0] += 29
            first.take(sign)
            await asyncio.sleep(0.02)
            assert not first.killed
        clock[0] += 31
        await until(lambda: first.killed and len(processes) == 2)
        message = "the engine gave no sign of life for 30 s and was ended"
        for run in (hung, waiting):
            with pytest.raises(ApiError, match=message) as failed:
                await collect_run(run)
            assert failed.value.status == (500 if run is hung else 503)
        assert client.ready is None and client.lost and client.stage == f"{message}; loading again"
        assert first.sent[-1] == Stop()
        second = processes[1]
        second.take(Ready("a device", 512, 64, "full"))
        again = client.run(JOB)
        second.take(done(again.job.job_id))
        assert await collect_run(again) == [done(again.job.job_id)]
        second.ended.set()
        await until(lambda: len(processes) == 3)
        clock[0] += 31  # in a load as well
        await until(lambda: client.exit_code == 3)
        assert failures == [True] and processes[2].killed

    asyncio.run(scenario())


async def collect_run(run: object) -> list[object]:
    async with contextlib.aclosing(run) as events:
        return [event async for event in events if not isinstance(event, Queued)]


def test_no_limit_for_the_engine(processes, clock):
    async def scenario() -> None:
        client = EngineClient(
            EngineOptions(Path("x.gguf"), None, None, turns=1),
            max_waiting=2,
            on_ready=print,
            on_failure=print,
            hung_after_s=0,
        )
        client.start()
        await until(lambda: len(processes) == 1)
        clock[0] += 1e9
        await asyncio.sleep(0.05)
        assert not processes[0].killed
        await client.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("ready", [False, True])
def test_stop(processes, ready):
    """Jobs end at once, whatever the engine does; one that loads is not waited for, as it looks at nothing."""

    async def scenario() -> None:
        options = EngineOptions(Path("x.gguf"), None, None, turns=1)
        client = EngineClient(options, max_waiting=2, on_ready=lambda _: None, on_failure=lambda: None)
        client.start()
        await until(lambda: len(processes) == 1)
        runs = []
        if ready:
            processes[0].take(Ready("a device", 512, 64, "full"))
            runs = [client.run(JOB), client.run(JOB)]
            assert runs[0].waited_s is not None and runs[1].waited_s is None
        await client.stop()
        await client.stop()  # as the lifespan does after a cut
        assert processes[0].killed != ready and processes[0].sent[-1] == Stop()
        for run in runs:
            with pytest.raises(ApiError, match="the server is stopping") as failed:
                await collect_run(run)
            assert failed.value.status == 503
        with pytest.raises(ApiError, match="the server is stopping"):
            client.run(JOB)

    asyncio.run(scenario())
