"""Answers with drafts that are stopped from outside, or looked away from, in the middle of a round: what was given out
is the text without drafts, and the conversation goes on from it, with the same cache.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest

import vkprefill
from tests.model.draft_scripts import Scripted, always, assert_same_cache
from tests.model.test_rows_cut_off import cut_off
from vkprefill import SamplingConfig, Session, SpecDecodeConfig
from vkprefill.cli.answer import AnswerWriter
from vkprefill.drafting.drafters import Drafting
from vkprefill.engine.capture import AttentionCapture
from vkprefill.engine.model import Model
from vkprefill.generation.options import AnswerOptions, Hooks
from vkprefill.generation.sampling import Sampler
from vkprefill.server.engine.engine import Engine
from vkprefill.server.engine.jobs import CANCELLED, Cancel, Done, Failed, Job, Piece, Stop
from vkprefill.server.engine.slots import Slots
from vkprefill.specprefill.scorer import Scorer

SAMPLED = SamplingConfig(temperature=1.2, top_k=20, presence_penalty=1.0, seed=3)
DRAFTS = SpecDecodeConfig("draft-mtp", n_max=4, adaptive=False)
PLAIN = SpecDecodeConfig("none")
TURN = 14  # tokens of an answer that is not stopped


class Stopped(Exception):
    """Of a consumer or a callback."""


@pytest.fixture(scope="module")
def model(load_model) -> Model:
    """Drafts of its block are often right."""
    return load_model("mtp-b-q4km", kv_type="f32", max_context=2048)


@dataclass
class Turn:
    """The second turn of a conversation, which a way to stop it is tried on. count: tokens that it may give out."""

    session: Session
    ids: list[int]
    options: AnswerOptions
    count: int

    def parts(self, hooks: Hooks | None = None):
        return self.session.stream_ids(self.ids, self.options, hooks)


def stop_taking(turn: Turn) -> list[int]:
    """The consumer leaves, as a client that closes its stream, or at a stop text."""
    parts = turn.parts()
    tokens = [next(parts).token_id for _ in range(turn.count)]
    parts.close()
    return tokens


def throw(error: type[BaseException], turn: Turn) -> list[int]:
    """Into the answer, where it waits for its consumer."""
    parts = turn.parts()
    tokens = [next(parts).token_id for _ in range(turn.count)]
    with pytest.raises(error):
        parts.throw(error("made up"))
    return tokens


def fail_in_sampler(turn: Turn) -> list[int]:
    class Failing(Sampler):
        left = turn.count

        def sample(self, *arguments: object) -> int:
            self.left -= 1
            if self.left < 0:
                raise Stopped
            return super().sample(*arguments)

    tokens = []
    with pytest.raises(Stopped):
        tokens += (part.token_id for part in turn.parts(Hooks(make_sampler=Failing)))
    return tokens


def fail_in_progress(turn: Turn) -> list[int]:
    """Of the turn's prefill, which follows the rounds of the turn before."""

    def progress(done: int, total: int) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        list(turn.parts(Hooks(progress=progress)))
    return []


def interrupt_a_step(turn: Turn) -> list[int]:
    """While the device runs it."""
    parts = turn.parts()
    tokens = [next(parts).token_id for _ in range(turn.count)]
    with cut_off(1, after=True):
        tokens += (part.token_id for part in parts)
    return tokens


WAYS: list[Callable[[Turn], list[int]]] = [
    stop_taking,
    partial(throw, Stopped),
    partial(throw, KeyboardInterrupt),
    fail_in_sampler,
    fail_in_progress,
]


def conversation(model: Model, prompt: list[int], decode: SpecDecodeConfig, way, count: int):
    """Three turns, the second stopped: (tokens of each, the session)."""
    session = Session(model, decode=decode)
    options = AnswerOptions(TURN, SAMPLED, decode=decode)
    ids, found = prompt[:30], []
    found.append([part.token_id for part in session.stream_ids(ids, options)])
    ids = [*session.prompt, *prompt[40:50]]
    found.append(way(Turn(session, ids, options, count)))
    ids = [*session.prompt, *prompt[60:70]]
    found.append([part.token_id for part in session.stream_ids(ids, options)])
    return found, session


@pytest.mark.parametrize("count", [1, 3, 4, 6])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: getattr(way, "__name__", str(getattr(way, "args", ""))))
def test_a_turn_that_is_stopped(model, prompt, way, count):
    """At each token of some rounds: the next turn is what it is without drafts, and so is all that is kept."""
    if way is fail_in_progress and count > 1:
        count = 1  # nothing is given out
    (want, plain), (found, drafted) = (conversation(model, prompt, decode, way, count) for decode in (PLAIN, DRAFTS))
    assert found == want and len(found[2]) == TURN
    assert list(drafted.prompt) == list(plain.prompt)
    assert [m.length for m in drafted.prompts.marks] == [m.length for m in plain.prompts.marks]
    assert_same_cache(model, drafted.cache, plain.cache)
    for session in (drafted, plain):
        session.close()


@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_a_step_that_is_interrupted(model, prompt, count):
    """Ctrl-C while the device runs: no token is lost that was given out, and none is there that was not."""
    found, session = conversation(model, prompt, DRAFTS, interrupt_a_step, count)
    assert len(found[1]) >= count
    (want, plain) = conversation(model, prompt, PLAIN, stop_taking, len(found[1]))
    assert found == want and list(session.prompt) == list(plain.prompt)
    assert_same_cache(model, session.cache, plain.cache)
    for one in (session, plain):
        one.close()


def look_at_other_things(model: Model, prompt: list[int], session: Session) -> list[Callable[[], object]]:
    """All that uses the model beside the answer."""
    capture = AttentionCapture(queries=(-1,))

    def score() -> None:
        scorer = Scorer(model)
        scorer.score(prompt[:20], vkprefill.SpecPrefillConfig())
        scorer.close()

    def go_back_and_forth() -> None:
        snapshot = session.cache.snapshot(on_host=True)
        model.extend([1, 2], session.cache)
        session.cache.restore(snapshot)

    return [
        lambda: model.prefill(prompt[:9], capture=capture),
        lambda: model.logits(prompt[:5]),
        score,
        lambda: session.cache.snapshot().free(),
        go_back_and_forth,
        lambda: session.cache.copy_rows([0, 3]).close(),
        lambda: vkprefill.generate(model, prompt[:7], max_tokens=4, sampling=SAMPLED, decode=DRAFTS),
        lambda: model.drafter().draft(5, session.cache, 3),
    ]


def test_other_uses_between_the_tokens(model, prompt):
    """Captured rows, logits of all tokens, scores, snapshots, other answers: none of them sees or disturbs a round."""
    ids, options = prompt[:30], AnswerOptions(40, SAMPLED, decode=PLAIN)
    plain = Session(model, decode=PLAIN)
    want = [part.token_id for part in plain.stream_ids(ids, options)]
    session = Session(model, decode=DRAFTS)
    uses = look_at_other_things(model, prompt, session)
    found, timings = [], None
    for i, part in enumerate(session.stream_ids(ids, AnswerOptions(40, SAMPLED, decode=DRAFTS))):
        found.append(part.token_id)
        timings = part.timings
        if i % 3 == 2:
            uses[i // 3 % len(uses)]()
    assert found == want and timings.draft_n_accepted > 0
    assert_same_cache(model, session.cache, plain.cache)
    for one in (session, plain):
        one.close()


def test_captured_rows_after_a_round(model, prompt):
    """Rows that wait are part of what is captured; drafts that were not taken are not."""
    rows = []
    for decode in (PLAIN, DRAFTS):
        session, capture = Session(model, decode=decode), AttentionCapture()
        parts = session.stream_ids(prompt[:30], AnswerOptions(30, SAMPLED, decode=decode))
        for _ in range(9):
            next(parts)
        logits = model.decode(11, session.cache, capture=capture)
        rows.append([logits, capture.token_ids, *capture.pattern.values()])
        parts.close()
        session.close()
    for found, want in zip(*reversed(rows), strict=True):
        np.testing.assert_array_equal(found, want)


def test_stop_texts(model, prompt):
    """At every place of the answer, within a token and over several, as `generate --stop` ends it."""
    plain = vkprefill.generate(model, prompt[:30], max_tokens=24, sampling=SAMPLED, decode=PLAIN)
    stops = [plain.text[i : i + length] for i in range(1, len(plain.text) - 3, 2) for length in (1, 3)]
    assert len(stops) > 10
    for stop in stops:
        found = []
        for decode in (PLAIN, DRAFTS):
            writer = AnswerWriter(shown=False)
            more = {"max_tokens": 24, "sampling": SAMPLED, "decode": decode, "stop": [stop]}
            writer.write(vkprefill.stream_generate(model, prompt[:30], **more))
            found.append((writer.result.text, writer.result.token_ids, writer.result.finish_reason))
        assert found[0] == found[1] and found[1][2] == "stop" and stop not in found[1][0], repr(stop)


# -- the server --------------------------------------------------------------------------------------------------------


class Pipe:
    """The engine's end of its pipe: jobs come one after another, each cancelled after so many pieces (None: never)."""

    def __init__(self, jobs: list[tuple[Job, int | None]]) -> None:
        self._jobs, self._cancel, self._pieces = deque(jobs), None, None
        self.events: list[object] = []

    def recv(self) -> object:
        if self._cancel is not None:
            message, self._cancel, self._pieces = self._cancel, None, None
            return message
        if not self._jobs:
            return Stop()
        job, self._pieces = self._jobs.popleft()
        return job

    def poll(self) -> bool:
        return self._cancel is not None

    def send(self, event: object) -> None:
        self.events.append(event)
        if isinstance(event, Piece) and self._pieces is not None:
            self._pieces -= 1
            if self._pieces == 0:
                self._cancel = Cancel(event.job_id)


def served(model: Model, jobs: list[tuple[Job, int | None]]) -> list[object]:
    slots, pipe = Slots(model, None, None), Pipe(jobs)
    try:
        with pytest.raises(EOFError):
            Engine(model, slots, pipe).serve()
    finally:
        slots.close()
    return pipe.events


@pytest.mark.parametrize("num_logprobs", [None, 2])
@pytest.mark.parametrize("pieces", [1, 2, 3, 5])
def test_a_request_that_is_cancelled_in_a_round(model, prompt, pieces, num_logprobs):
    """Its client leaves; then the conversation comes again, longer, and another one that ends at a text."""
    seen = []
    for decode in (PLAIN, DRAFTS):
        options = AnswerOptions(20, SAMPLED, mark_at=(32,), decode=decode)
        ids = tuple(prompt[:40])
        again = Job(2, (*ids, *prompt[50:60]), options, num_logprobs=num_logprobs)
        stopped = Job(3, ids, replace(options, stop=("\x00", "e")), num_logprobs=num_logprobs)
        events = served(
            model, [(Job(1, ids, options, num_logprobs=num_logprobs), pieces), (again, None), (stopped, None)]
        )
        ends = [event for event in events if isinstance(event, Done | Failed)]
        assert isinstance(ends[0], Failed) and ends[0].status == CANCELLED
        # One that ended at its first token leaves the cache at the prompt's end.
        assert ends[1].timings["cache_n"] == (40 if pieces == 1 else 32)
        counts = [
            (end.finish_reason, end.stop_text, end.timings["predicted_n"], end.timings["cache_n"]) for end in ends[1:]
        ]
        pieces_of = [(e.job_id, e.text, e.logprobs) for e in events if isinstance(e, Piece)]
        seen.append((pieces_of, counts))
        assert (sum(end.timings["draft_n"] for end in ends[1:]) > 0) == (decode is DRAFTS)
    assert seen[0] == seen[1]


def test_a_failure_in_a_round_is_that_request_s_alone(model, prompt, monkeypatch):
    """The next one of the same conversation is answered as ever."""
    options = AnswerOptions(20, SAMPLED, decode=DRAFTS)
    ids = tuple(prompt[:40])
    want = served(model, [(Job(2, ids, options), None)])
    calls, draw = iter(range(1000)), Sampler.sample

    def fail(self: Sampler, *arguments: object) -> int:
        if next(calls) == 6:
            raise ZeroDivisionError
        return draw(self, *arguments)

    monkeypatch.setattr(Sampler, "sample", fail)
    events = served(model, [(Job(1, ids, options), None), (Job(2, ids, options), None)])
    (failed,) = (event for event in events if isinstance(event, Failed))
    assert (failed.job_id, failed.status) == (1, 500)
    texts = ["".join(e.text for e in some if isinstance(e, Piece) and e.job_id == 2) for some in (want, events)]
    assert texts[0] == texts[1] != ""


def test_a_request_for_a_block_that_was_not_loaded(load_model, prompt):
    """Is told so; the next one is answered."""
    without = load_model("mtp-b-q4km", kv_type="f32", mtp=None)
    ids = tuple(prompt[:20])
    events = served(
        without,
        [(Job(i, ids, AnswerOptions(4, SAMPLED, decode=decode)), None) for i, decode in enumerate((DRAFTS, PLAIN))],
    )
    failed, done = (event for event in events if isinstance(event, Done | Failed))
    assert isinstance(failed, Failed) and failed.status == 400
    assert failed.message.startswith("drafts of type draft-mtp: ") and isinstance(done, Done)


def test_scripted_rounds_of_a_request(model, prompt, monkeypatch):
    """All of four drafts right, cancelled at each of the five tokens: what was sent is kept, no more."""
    ids, options = prompt[:40], AnswerOptions(30, SAMPLED, decode=DRAFTS)
    wanted = vkprefill.generate(model, ids, max_tokens=60, sampling=SAMPLED, decode=PLAIN).token_ids
    for taken in range(2, 9):
        drafting = Drafting([Scripted(wanted, len(ids), [(True,) * 4] * 40)], always())
        monkeypatch.setattr("vkprefill.generation.tokens.drafting_for", lambda *_, made=drafting: made)
        session = Session(model)
        parts = session.stream_ids(ids, options)
        assert [next(parts).token_id for _ in range(taken)] == wanted[:taken]
        parts.close()
        assert session.cache.token_ids == ids + wanted[: taken - 1] == list(session.prompt)
        session.close()
