"""The server's engine in this process, with jobs that come, and go, when the test says."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from time import perf_counter

import pytest

from vkprefill.engine.model import Model
from vkprefill.server.engine.engine import Engine
from vkprefill.server.engine.jobs import Alive, Cancel, Done, Failed, Job, Piece, Standing, Standings, Stop
from vkprefill.server.engine.slots import Slots
from vkprefill.specprefill.settings import SpecPrefillConfig

Events = list[object]
Condition = Callable[[Events], bool]


def at_once(events: Events) -> bool:
    return True


def after(job_id: int, pieces: int) -> Condition:
    """When so many pieces of a job have come."""
    return lambda events: sum(isinstance(e, Piece) and e.job_id == job_id for e in events) >= pieces


def while_read(job_id: int, slices: int) -> Condition:
    """When a job had so many slices, all of them with its prompt."""

    def holds(events: Events) -> bool:
        standing = last_standing(events, job_id)
        return standing is not None and standing.slices >= slices

    return holds


def last_standing(events: Events, job_id: int) -> Standing | None:
    for event in reversed(events):
        if isinstance(event, Standings):
            return next((one for one in event.jobs if one.job_id == job_id), None)
    return None


class Clock:
    """That turns go by: a look into the pipe takes 50 ms, whatever the machine is busy with."""

    def __init__(self) -> None:
        self.now = perf_counter()

    def __call__(self) -> float:
        return self.now


class Script:
    """In place of the pipe: each message comes as soon as its condition holds, or when there is nothing else to do.
    first_s: real seconds from each job to its first piece.
    """

    def __init__(self, messages: Sequence[tuple[Condition, Job | Cancel]], clock: Clock) -> None:
        self._messages, self._clock = list(messages), clock
        self.events: Events = []
        self._came: dict[int, float] = {}
        self.first_s: dict[int, float] = {}

    def poll(self) -> bool:
        self._clock.now += 0.05
        return bool(self._messages) and self._messages[0][0](self.events)

    def recv(self) -> object:
        message = self._messages.pop(0)[1] if self._messages else Stop()
        self.events.append(message)
        if isinstance(message, Job):
            self._came[message.job_id] = perf_counter()
        return message

    def send(self, event: object) -> None:
        self.events.append(event)
        if isinstance(event, Piece):
            self.first_s.setdefault(event.job_id, perf_counter() - self._came[event.job_id])


@dataclass(frozen=True)
class Served:
    """What an engine said to a script. events: with the messages, where they were read; first_s: see Script."""

    events: Events
    first_s: dict[int, float]

    def of(self, job_id: int) -> tuple[str, list[object], str]:
        """(text, log-probabilities, how it ended) of an answer."""
        text, chances = "", []
        for event in self.events:
            if isinstance(event, Piece) and event.job_id == job_id:
                text = (text if event.revised_from is None else text[: event.revised_from]) + event.text
                chances += event.logprobs
        end = self.end(job_id)
        return text, chances, end.finish_reason if isinstance(end, Done) else f"{end.status} {end.message}"

    def end(self, job_id: int) -> Done | Failed:
        (end,) = (e for e in self.events if isinstance(e, Done | Failed) and e.job_id == job_id)
        return end

    def index(self, found: Callable[[object], bool]) -> int:
        return next(i for i, event in enumerate(self.events) if found(event))

    def slices_before_first_piece(self, job_id: int) -> int:
        """Of others, between the job's arrival and its first piece."""
        came = self.index(lambda e: isinstance(e, Job) and e.job_id == job_id)
        spoke = self.index(lambda e: isinstance(e, Piece) and e.job_id == job_id)
        counts = [{one.job_id: one.slices for one in e.jobs} for e in self.events[:spoke] if isinstance(e, Standings)]
        before = [{one.job_id: one.slices for one in e.jobs} for e in self.events[:came] if isinstance(e, Standings)]
        last, first = counts[-1], before[-1] if before else {}
        return sum(n - first.get(other, 0) for other, n in last.items() if other != job_id)

    def order(self) -> list[int]:
        """Whose pieces came, each run of them once."""
        return [job_id for job_id, _ in groupby(e.job_id for e in self.events if isinstance(e, Piece))]


@pytest.fixture
def serve(monkeypatch):
    """serve(model, messages, draft=None, spec=None) -> Served: the engine in this process, a slice for each run of the
    model; slots= to keep between calls.
    """
    clock = Clock()
    monkeypatch.setattr("vkprefill.server.engine.turns.perf_counter", clock)
    monkeypatch.setattr("vkprefill.server.engine.turns.SLICE_S", 0.0)
    monkeypatch.setattr("vkprefill.server.engine.engine.STANDINGS_PAUSE_S", -1.0)

    def run(
        model: Model,
        messages: Sequence[tuple[Condition, Job | Cancel]],
        draft: Model | None = None,
        spec: SpecPrefillConfig | None = None,
        slots: Slots | None = None,
    ) -> Served:
        used, script = slots or Slots(model, draft, spec), Script(messages, clock)
        try:
            with pytest.raises(EOFError):
                Engine(model, used, script).serve()
        finally:
            if slots is None:
                used.close()
        return Served([event for event in script.events if not isinstance(event, Alive)], script.first_s)

    return run


def alone(serve, model: Model, job: Job, **options: object) -> tuple[str, list[object], str]:
    return serve(model, [(at_once, replace(job, job_id=1))], **options).of(1)
