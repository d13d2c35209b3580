"""Conversations whose sparse answers are checked: after a check they are, bit for bit, those that never were sparse."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from tests.model.sparse_requests import GREEDY, PROMPTS
from vkprefill import GenerationResult, SamplingConfig, Session, SpecPrefillConfig
from vkprefill.engine.model import Model
from vkprefill.generation.dense_side import DenseSide
from vkprefill.generation.options import AnswerOptions
from vkprefill.generation.parts import GenerationPart
from vkprefill.generation.sampling import Sampler
from vkprefill.generation.session_check import SessionCheck
from vkprefill.server.engine.slots import Slots
from vkprefill.specprefill import guards
from vkprefill.specprefill.plan import SparseRequest

LIMIT = 6
DRAWN = SamplingConfig(temperature=0.4, top_k=0, top_p=1.0, presence_penalty=0.5, seed=7)  # whole rows of logits
Messages = list[dict[str, str]]
Draws = list[tuple[np.ndarray, np.ndarray]]


def on(**settings: object) -> SpecPrefillConfig:
    return SpecPrefillConfig(**{"check": "on", "protect_question": False, **settings})


@pytest.fixture(scope="module")
def model(load_model) -> Iterator[Model]:
    """Prompts take several runs."""
    made = load_model("built-in", max_context=4096, prefill_chunk=64)
    made.logits([1])
    yield made


@pytest.fixture
def new_session(model) -> Iterator[Callable[[], Session]]:
    """new_session(): closed at the end; all memory is back then."""
    before = model.device.allocated.total(), len(model.runner.pool.free_pages)
    made: list[Session] = []

    def make() -> Session:
        made.append(Session(model))
        return made[-1]

    yield make
    for session in made:
        session.close()
    assert (model.device.allocated.total(), len(model.runner.pool.free_pages)) == before


@pytest.fixture
def draws(monkeypatch) -> Draws:
    """All that samplers are given, from now on."""
    found: Draws = []
    real = Sampler.sample

    def sample(self: Sampler, token_ids: np.ndarray, logits: np.ndarray) -> int:
        found.append((token_ids.copy(), logits.copy()))
        return real(self, token_ids, logits)

    monkeypatch.setattr(Sampler, "sample", sample)
    return found


def kept_ranges(session: Session, messages: Messages) -> list[list[int]]:
    """Some of what is new, without what the answer is about."""
    num_tokens = len(session.model.chat_template.encode(messages))
    return [[start, start + 16] for start in range(0, num_tokens - 64, 96)] + [[num_tokens - 24, num_tokens]]


def ask(session: Session, messages: Messages, content: str, *, sparse: bool = True, **options: object):
    """One turn; adds it to messages."""
    messages.append({"role": "user", "content": content})
    options = {"max_tokens": LIMIT, "sampling": DRAWN, **options}
    if sparse:
        options |= {"spec": on(), "kept_ranges": kept_ranges(session, messages), **options}
    result = session.generate(messages, **options)
    messages.append({"role": "assistant", "content": result.text})
    return result


def question(number: int) -> str:
    return PROMPTS[number]["user"] if number < 1 else PROMPTS[number]["user"][:400] + PROMPTS[number]["question"]


def dense_turns(session: Session, draws: Draws, count: int) -> tuple[list[GenerationResult], list[Draws]]:
    """Answers and draws of turns that never were sparse."""
    messages, results, found = [], [], []
    for number in range(count):
        draws.clear()
        results.append(ask(session, messages, question(number), sparse=False))
        found.append(list(draws))
    return results, found


def assert_same_draws(some: Draws, others: Draws) -> None:
    assert len(some) == len(others)
    for one, other in zip(some, others, strict=True):
        assert np.array_equal(one[0], other[0]) and np.array_equal(one[1], other[1])


def same_answer(found: GenerationResult, wanted: GenerationResult) -> None:
    assert (found.token_ids, found.text, found.finish_reason) == (wanted.token_ids, wanted.text, wanted.finish_reason)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_two_turns_after_a_checked_one(new_session, draws, share):
    """Bit for bit those of a conversation that never was sparse, where the second was checked as well."""
    session, messages = new_session(), []
    wanted, wanted_draws = dense_turns(new_session(), draws, 4)
    for number in range(2):
        result = ask(session, messages, question(number), spec=on(check_share=share))
        same_answer(result, wanted[number])
        assert result.specprefill.status == guards.ACTIVE
        assert result.specprefill.check["status"] in ("equal", "revised")
        assert session.cache.positions == list(range(len(session.cache))), "nothing is missing any more"
    for number in (2, 3):
        draws.clear()
        result = ask(session, messages, question(number), sparse=False)
        same_answer(result, wanted[number])
        assert_same_draws(draws, wanted_draws[number])
        assert result.timings.cache_n == wanted[number].timings.cache_n > 0


def stream(session: Session, messages: Messages, **options: object):
    options = {"max_tokens": LIMIT, "sampling": DRAWN, "spec": on(check_share=0), **options}
    return session.stream(messages, kept_ranges=kept_ranges(session, messages), **options)


def pending(session: Session, number: int = 0, **options: object) -> Messages:
    """A turn whose check is left for idle time; the messages with its answer."""
    messages = [{"role": "user", "content": question(number)}]
    parts = list(stream(session, messages, **options))
    assert parts[-1].specprefill.check["status"] == "pending"
    return [*messages, {"role": "assistant", "content": "".join(p.text for p in parts)}]


def test_idle_checking(new_session, draws):
    """Step by step; the next turn goes on from the dense side, with the bits of a conversation that never was sparse
    where the answer was the same, and in any case without what was missing.
    """
    session = new_session()
    wanted, _ = dense_turns(new_session(), draws, 1)
    messages = [{"role": "user", "content": question(0)}]
    *_, last = stream(session, messages)
    lacking, steps = len(session.cache), 0
    while session.idle():
        steps += 1
    assert steps > 5 and not session.idle()
    check = last.specprefill.check
    assert check["status"] in ("equal", "differs") and check["dense_ms"] > 0
    assert session.cache.positions == list(range(len(session.cache))) and len(session.cache) > lacking
    again = session.generate(messages, max_tokens=LIMIT, sampling=DRAWN)
    same_answer(again, wanted[0])
    assert again.timings.cache_n > 400, "the dense prefill was not for nothing"


def test_no_idle_checking(new_session):
    session = new_session()
    pending(session, spec=on(check_share=0, check_idle=False))
    assert not session.idle() and session.cache.positions != list(range(len(session.cache)))


@pytest.mark.parametrize("steps", [0, 1, 4, 9])
def test_the_next_turn_comes_before_the_check_is_done(new_session, draws, steps):
    """It goes first; its own check goes on from what there is."""
    session, other = new_session(), new_session()
    messages = pending(session)
    for _ in range(steps):
        session.idle()
    turn = [*messages, {"role": "user", "content": question(1)}]
    result = session.generate(turn, max_tokens=LIMIT, sampling=DRAWN, spec=on(), kept_ranges=kept_ranges(session, turn))
    same_answer(result, other.generate(turn, max_tokens=LIMIT, sampling=DRAWN))
    assert session.cache.positions == list(range(len(session.cache)))


def test_given_up_for_memory(new_session, model):
    session = new_session()
    pending(session)
    free = len(model.runner.pool.free_pages)
    for _ in range(4):
        session.idle()
    assert len(model.runner.pool.free_pages) < free
    session.give_up_check()
    assert len(model.runner.pool.free_pages) == free and not session.idle()


class StopAt:
    """A progress callback, and a draw, that are interrupted at the n-th call of both."""

    def __init__(self, number: int) -> None:
        self.number, self.calls = number, 0

    def __call__(self) -> None:
        self.calls += 1
        if self.calls == self.number:
            raise KeyboardInterrupt


def after(first: Callable[[], None], real: Callable[..., object]) -> Callable[..., object]:
    def both(*args: object, **options: object) -> object:
        first()
        return real(*args, **options)

    return both


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_interrupted_at_every_step(new_session, model, monkeypatch, share):
    """At every run of the engine and every draw, of either side: the turn can be asked again, and the next one."""
    messages = [{"role": "user", "content": question(1)[-500:]}]
    wanted = new_session().generate(messages, max_tokens=LIMIT, sampling=GREEDY)
    failing, done = 0, False
    while not done:
        failing += 1
        stop, session = StopAt(failing), new_session()
        with monkeypatch.context() as patch:
            for owner, name in ((model.runner, "prefill"), (model.runner, "run_rows"), (Sampler, "sample")):
                patch.setattr(owner, name, after(stop, getattr(owner, name)))
            try:
                ranges = kept_ranges(session, messages)
                options = {"max_tokens": LIMIT, "sampling": GREEDY, "kept_ranges": ranges}
                session.generate(messages, spec=on(check_share=share), **options)
                done = True
            except KeyboardInterrupt:
                pass
        same_answer(session.generate(messages, max_tokens=LIMIT, sampling=GREEDY, specprefill=False), wanted)
        session.close()
    assert failing > 12


def test_interrupted_while_idle(new_session, monkeypatch):
    session, other = new_session(), new_session()
    messages = pending(session, 1)
    with monkeypatch.context() as patch:
        patch.setattr(SessionCheck, "_adopt", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            while session.idle():
                pass
    assert not session.idle()
    turn = [*messages, {"role": "user", "content": question(2)}]
    options = {"max_tokens": LIMIT, "sampling": GREEDY, "specprefill": False}
    same_answer(session.generate(turn, **options), other.generate(turn, **options))


# -- several conversations ---------------------------------------------------------------------------------------------


@pytest.fixture
def slots(load_model) -> Iterator[Slots]:
    """Room for 1,024 tokens, in four pages."""
    small = load_model("built-in", max_context=1024, prefill_chunk=64)
    small.logits([1])
    before = small.device.allocated.total(), len(small.runner.pool.free_pages)
    made = Slots(small, None, None)
    yield made
    made.close()
    assert (small.device.allocated.total(), len(small.runner.pool.free_pages)) == before


def served(slots: Slots, ids: list[int], **sparse: object) -> GenerationPart:
    """The last part of an answer."""
    options = AnswerOptions(2, GREEDY, SparseRequest(**sparse))
    *_, last = slots.choose(ids, options).stream_ids(ids, options)
    return last


def prompt(slots: Slots, name: str, length: int) -> list[int]:
    return slots.model.tokenizer.encode(name + " The river was quiet." * length)[:length]


def leave_pending(slots: Slots) -> None:
    ids = prompt(slots, "Anna", 400)
    sparse = {"config": on(check_share=0), "kept_ranges": [[0, 20], [380, 400]]}
    assert served(slots, ids, **sparse).specprefill.check["status"] == "pending"


def test_pending_checks_make_room_first(slots):
    """A page for what was kept, two for the whole prompt beside, and the next prompt wants three."""
    leave_pending(slots)
    while len(slots.model.runner.pool.free_pages) > 1:
        assert slots.idle()
    served(slots, prompt(slots, "Boris", 700))
    assert slots.figures()["conversations"] == 2 and slots.figures()["evictions"] == 0
    assert not slots.idle() and slots.late_checks() == {}


def test_pending_checks_take_no_room_from_conversations(slots):
    leave_pending(slots)
    served(slots, prompt(slots, "Boris", 600))
    assert slots.figures()["conversations"] == 2 and len(slots.model.runner.pool.free_pages) == 0
    while slots.idle():
        pass
    assert slots.late_checks() == {"off": 1} and slots.figures()["conversations"] == 2


def test_late_checks_are_counted(slots):
    leave_pending(slots)
    while slots.idle():
        pass
    ((status, count),) = slots.late_checks().items()
    assert status in ("equal", "differs") and count == 1
    ids = prompt(slots, "Anna", 400)
    assert served(slots, [*ids, 5, 6], enabled=False).timings.cache_n > 300


def test_a_check_that_finds_no_room_gives_itself_up(slots, monkeypatch):
    """In a step of its own, where the full pool asks for checks to be given up: not from inside of it."""
    monkeypatch.setattr(DenseSide, "has_spare_room", lambda _: True)
    leave_pending(slots)
    pool = slots.model.runner.pool
    options = AnswerOptions(2, GREEDY)
    ids = prompt(slots, "Boris", 600)
    parts = slots.choose(ids, options).stream_ids(ids, options)
    next(parts)  # in use: its pages are not to be had
    assert len(pool.free_pages) == 0
    while slots.idle():
        pass
    assert slots.late_checks() == {"off": 1} and not slots.idle()
    assert len(list(parts)) > 0, "the answer goes on"
