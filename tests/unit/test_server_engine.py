"""The engine's loop with a scripted model: what it sends, when it stops, what a failure leaves."""

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from vkprefill import SamplingConfig
from vkprefill.errors import ContextLengthError, DeviceError, OutOfMemoryError, RequestError, VkPrefillError
from vkprefill.generation.options import AnswerOptions, Hooks
from vkprefill.generation.parts import GenerationPart, Parts, cut_at_stops
from vkprefill.generation.steps import Timings
from vkprefill.server.engine.engine import Engine
from vkprefill.server.engine.jobs import (
    CANCELLED,
    Alive,
    Cancel,
    Done,
    Failed,
    Job,
    Piece,
    Progress,
    Standings,
    Stop,
    Unusable,
)
from vkprefill.specprefill.plan import SpecPrefillReport
from vkprefill.work import OneAtATime, Pause

PATIENCE_S = 60  # only what hangs takes longer
PIECES = ["one", " two", " three"]


class Session:
    """Answers with PIECES after a prefill of three submissions. on_step(n): called before each of those."""

    def __init__(self, model: object) -> None:
        self.model = model
        self.prompt: list[int] = []
        self.on_step: Callable[[int], None] = lambda step: None
        self.closed = self.resets = 0

    def find(self, token_ids: object, options: AnswerOptions) -> None:
        return None

    def reset(self) -> None:
        self.resets += 1

    def in_slices(self, token_ids: object, options: AnswerOptions, hooks: Hooks) -> Parts:
        hooks.make_sampler(SamplingConfig(temperature=0, top_k=1, top_p=1, min_p=0, presence_penalty=0, seed=0))
        timings, report = Timings(), SpecPrefillReport("disabled", "no draft model", len(token_ids))
        raw = self._parts(hooks, timings, report)
        try:
            yield from cut_at_stops(raw, options.stop)
        finally:
            self.closed += 1

    def _parts(self, hooks: Hooks, timings: Timings, report: SpecPrefillReport) -> Parts:
        for step in range(3):
            self.on_step(step)
            hooks.progress(step + 1, 3)
            yield Pause.SLICE
        for index, piece in enumerate(PIECES):
            if index:
                yield Pause.SLICE
            self.on_step(3 + index)
            yield GenerationPart(piece, index, timings, report, "length" if index == len(PIECES) - 1 else None)


class Slots:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.others = False  # whether there is memory of others to give back
        self.on_idle: Callable[[], bool] = lambda: False
        self.scorer = OneAtATime()
        self.in_turn: list[Session] = []

    def begin(self, session: Session) -> None:
        self.in_turn.append(session)

    def end(self, session: Session) -> None:
        self.in_turn.remove(session)

    def resume(self, session: Session) -> None:
        assert session in self.in_turn

    def can_resume(self, session: Session) -> bool:
        return True

    def choose(self, token_ids: object, options: AnswerOptions) -> Session:
        return self.session

    def figures(self) -> dict[str, int]:
        return {"conversations": 1}

    def idle(self) -> bool:
        return self.on_idle()

    def late_checks(self) -> dict[str, int]:
        return {}

    def forget(self, session: Session) -> None:
        session.reset()

    def forget_others(self) -> bool:
        others, self.others = self.others, False
        return others


class Bench:
    """An engine in a thread, and the server's end of its pipe."""

    def __init__(self) -> None:
        model = SimpleNamespace(
            device=SimpleNamespace(lost=False, info=SimpleNamespace(name="a device"), allocated={"weights": 7})
        )
        self.device, self.session = model.device, Session(model)
        self.slots = Slots(self.session)
        self.pipe, theirs = multiprocessing.Pipe()
        self.ended: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, args=(Engine(model, self.slots, theirs),), daemon=True)
        self._thread.start()

    def _serve(self, engine: Engine) -> None:
        try:
            engine.serve()
        except BaseException as error:
            self.ended = error

    def answer(self, **fields: object) -> list[object]:
        """All events of a job."""
        self.pipe.send(Job(5, (1, 2, 3), **fields))
        events = []
        while not events or not isinstance(events[-1], Done | Failed):
            assert self.pipe.poll(PATIENCE_S), events
            events.append(self.pipe.recv())
        return [event for event in events if not isinstance(event, Standings)]

    def join(self) -> BaseException | None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        return self.ended


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.pipe.close()
    made.join()


def text_of(events: list[object]) -> str:
    return "".join(e.text for e in events if isinstance(e, Piece))


def raise_at(step: int, error: BaseException, times: int = 1) -> Callable[[int], None]:
    left = [times]

    def on_step(now: int) -> None:
        if now == step and left[0]:
            left[0] -= 1
            raise error

    return on_step


def test_an_answer(bench, monkeypatch):
    monkeypatch.setattr("vkprefill.server.engine.answer.PROGRESS_PAUSE_S", 3600)
    events = bench.answer()
    assert text_of(events) == "one two three"
    done = events[-1]
    assert done.finish_reason == "length" and done.memory == {"weights": 7} and done.specprefill["status"] == "disabled"
    assert sum(isinstance(e, Progress) for e in events) == 1, "one shows that the job runs; more only where asked for"
    assert [(e.done, e.total) for e in bench.answer(want_progress=True) if isinstance(e, Progress)] == [
        (1, 3),
        (2, 3),
        (3, 3),
    ]


def test_signs_of_life_where_nothing_is_told(bench, monkeypatch):
    """Steps without progress, tokens without text: the server hears of each."""
    monkeypatch.setattr("vkprefill.server.engine.answer.ALIVE_PAUSE_S", 0)
    monkeypatch.setattr("vkprefill.server.engine.answer.PROGRESS_PAUSE_S", 3600)
    events = bench.answer(options=AnswerOptions(stop=("one two three four",)))
    assert text_of(events) == "one two three"
    assert sum(isinstance(e, Alive) for e in events) == 6


def test_stop_text_ends_the_work(bench):
    steps = []
    bench.session.on_step = steps.append
    events = bench.answer(options=AnswerOptions(stop=("e t",)))
    assert text_of(events) == "on" and events[-1].finish_reason == "stop" and events[-1].stop_text == "e t"
    assert steps[-1] == 4 and bench.session.closed == 1


def test_requests_go_before_idle_work(bench):
    """One that comes between two steps of it is answered before the next, and without a pause."""
    seen: list[str] = []

    def on_idle() -> bool:
        seen.append("idle")
        if seen.count("idle") == 3:
            bench.pipe.send(Job(5, (1,)))
        return seen.count("idle") < 9

    bench.session.on_step = lambda step: seen.append("job")
    bench.slots.on_idle = on_idle
    bench.answer()  # the loop waits for a message when the test begins; idle work comes after that
    while True:
        assert bench.pipe.poll(PATIENCE_S)
        if isinstance(bench.pipe.recv(), Done):
            break
    bench.pipe.close()
    bench.join()
    assert seen[:15] == ["job"] * 6 + ["idle"] * 3 + ["job"] * 6


@pytest.mark.parametrize("step", range(6))
def test_cancelled_before_the_next_step(bench, step):
    steps = []

    def on_step(now: int) -> None:
        steps.append(now)
        if now == step:
            bench.pipe.send(Cancel(4))  # another job's, long over
            bench.pipe.send(Cancel(5))

    bench.session.on_step = on_step
    assert bench.answer()[-1].status == CANCELLED
    assert steps[-1] == step and bench.session.closed == 1 and bench.session.resets == 0
    bench.session.on_step = lambda now: None
    assert text_of(bench.answer()) == "one two three"


@pytest.mark.parametrize(
    ("error", "status", "message", "resets"),
    [
        (RequestError("a bad prompt"), 400, "a bad prompt", 0),
        (ContextLengthError("context: too long"), 400, "context: too long", 0),
        (VkPrefillError("logits: NaN"), 500, "logits: NaN", 0),
        (OutOfMemoryError("no room"), 503, "no room", 0),
        (ZeroDivisionError("a mistake of ours"), 500, "internal error; the server's log has more", 1),
    ],
)
@pytest.mark.parametrize("step", [1, 4])
def test_failures(bench, error, status, message, resets, step):
    bench.session.on_step = raise_at(step, error)
    failed = bench.answer()[-1]
    assert (failed.status, failed.message, bench.session.resets) == (status, message, resets)
    assert failed.code == ("context_length_exceeded" if isinstance(error, ContextLengthError) else None)
    assert text_of(bench.answer()) == "one two three", "the engine goes on"


def test_memory_of_others_is_given_back_for_a_second_attempt(bench):
    bench.slots.others = True
    bench.session.on_step = raise_at(1, OutOfMemoryError("no room"))
    assert text_of(bench.answer()) == "one two three" and bench.session.closed == 2
    bench.slots.others = True
    bench.session.on_step = raise_at(5, OutOfMemoryError("no room"))
    assert bench.answer()[-1].status == 503, "not after text was sent"


def test_lost_device_ends_the_process(bench, monkeypatch):
    codes = []
    monkeypatch.setattr("os._exit", lambda code: (codes.append(code), (_ for _ in ()).throw(EOFError)))

    def lose(step: int) -> None:
        bench.device.lost = True
        raise DeviceError("prefill: a device: the device was lost")

    bench.session.on_step = lose
    assert bench.answer()[-1] == Failed(5, 500, "prefill: a device: the device was lost")
    assert bench.pipe.poll(PATIENCE_S) and bench.pipe.recv() == Unusable("a device: the device was lost", lost=True)
    assert isinstance(bench.join(), EOFError) and codes == [3]


@pytest.mark.parametrize("how", ["stop", "close"])
def test_end(bench, how):
    if how == "stop":
        bench.session.on_step = lambda step: bench.pipe.send(Stop()) if step == 1 else None
        bench.pipe.send(Job(5, (1,)))
    else:
        bench.pipe.close()
    assert isinstance(bench.join(), EOFError)
