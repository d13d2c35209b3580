"""Answers in turns: who has the device when, each the same as alone, and none touches another."""

from dataclasses import replace

import pytest

import vkprefill
from tests.model.conftest import BUILT_IN
from tests.model.turns_script import after, alone, at_once, while_read
from vkprefill import SamplingConfig, SpecDecodeConfig, SpecPrefillConfig
from vkprefill.engine.cache import Cache
from vkprefill.errors import OutOfMemoryError
from vkprefill.generation.options import AnswerOptions, grammar_of
from vkprefill.generation.sampling import Sampler
from vkprefill.server.engine.jobs import CANCELLED, Cancel, Done, Failed, Job, Piece, Standings
from vkprefill.server.engine.slots import Slots
from vkprefill.specprefill.plan import SparseRequest

GREEDY = SamplingConfig(temperature=0.0)
SAMPLED = SamplingConfig(temperature=1.0, top_k=40, top_p=0.95, min_p=0.0, presence_penalty=0.5, seed=7)
SPARSE = SpecPrefillConfig(break_even=False, min_tokens=200, lookahead=2, select_mode="chunk", keep_ratio=0.3, tail=24)
SELF = SpecPrefillConfig(
    scorer="self", break_even=False, min_tokens=200, select_mode="chunk", keep_ratio=0.3, check="off"
)


@pytest.fixture(scope="module")
def model(load_model) -> vkprefill.Model:
    return load_model("built-in", max_context=4096, prefill_chunk=64)


@pytest.fixture(scope="module")
def draft():
    with vkprefill.load(BUILT_IN.with_name("draft.gguf"), max_context=4096, prefill_chunk=64) as loaded:
        yield loaded


def ids(model: vkprefill.Model, name: str, length: int) -> tuple[int, ...]:
    return tuple(model.tokenizer.encode(f"{name}. " + "The river was quiet, and it rained. " * length)[:length])


def job(number: int, tokens: tuple[int, ...], most: int = 6, **fields: object) -> Job:
    sampling = fields.pop("sampling", GREEDY)
    extra = {name: fields.pop(name) for name in ("num_logprobs", "echo") if name in fields}
    return Job(number, tokens, AnswerOptions(most, sampling, **{"mark_at": (len(tokens) - 3,), **fields}), **extra)


@pytest.mark.parametrize("length", [900, pytest.param(16384, marks=pytest.mark.exhaustive)])
def test_a_short_request_beside_a_long_prompt(load_model, serve, length):
    """It waits for the slice in hand, and both answers are what they are alone."""
    more = {"max_context": 4096, "prefill_chunk": 64} if length < 4096 else {"max_context": 20480}
    model = load_model("built-in", **more)
    long, short = job(1, ids(model, "Anna", length)), job(2, ids(model, "Hi", 9))
    served = serve(model, [(at_once, long), (while_read(1, 5), short)])
    print(f"\nbeside {length} tokens: {served.slices_before_first_piece(2)} slices, {served.first_s[2]:.2f} s in all")
    assert served.slices_before_first_piece(2) <= 2
    assert served.order()[0] == 2, "the long prompt was still read"
    for one in (long, short):
        assert served.of(one.job_id) == alone(serve, model, one)
    assert served.end(1).timings["wait_ms"] > 0 < served.end(2).timings["prompt_ms"]


def test_a_short_request_beside_an_endless_answer(model, serve):
    endless = job(1, ids(model, "Anna", 30), 80, ignore_eos=True, sampling=SAMPLED)
    short = job(2, ids(model, "Hi", 9))
    served = serve(model, [(at_once, endless), (after(1, 20), short)])
    assert served.slices_before_first_piece(2) <= 2
    assert [type(served.end(n)) for n in (1, 2)] == [Done, Done]
    ends = [i for i, event in enumerate(served.events) if isinstance(event, Done)]
    assert served.events[ends[0]].job_id == 2, "it need not wait for the other's end"
    for one in (endless, short):
        assert served.of(one.job_id) == alone(serve, model, one)


def test_short_requests_do_not_starve_a_long_one(model, serve):
    """One after another comes while it is read, once it has had its head start; its slices go on between theirs."""
    long = job(1, ids(model, "Anna", 900))
    shorts = [job(n, ids(model, f"Hi {n}", 9), 3) for n in range(2, 12)]
    messages = [(at_once, long), *((while_read(1, 4 + n), one) for n, one in enumerate(shorts))]
    served = serve(model, messages)
    ends = [event.job_id for event in served.events if isinstance(event, Done)]
    assert len(ends) == 11 and served.of(1) == alone(serve, model, long)
    for one in shorts:
        assert served.slices_before_first_piece(one.job_id) <= 2


def test_answers_of_all_kinds(model, draft, serve):
    """Eight at once, with a draft, pruned by it and by the model itself, checked, formed: each as it is alone."""
    ngram = SpecDecodeConfig("ngram")
    again = ids(model, "one two one two", 40) * 2
    schema = grammar_of({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, None)
    asks = [
        job(1, ids(model, "Anna", 700), sparse=SparseRequest(config=SPARSE)),
        job(2, ids(model, "Boris", 650), sparse=SparseRequest(config=SELF), sampling=SAMPLED),
        job(3, again, 30, decode=ngram, sampling=SAMPLED),
        job(4, ids(model, "Celia", 500), 12, sparse=SparseRequest(config=replace(SPARSE, check="on")), whole=True),
        job(5, ids(model, "Dora", 40), 30, grammar=schema, sampling=SAMPLED),
        job(6, ids(model, "Emil", 90), 8, num_logprobs=3, echo=True),
        job(7, ids(model, "Fritz", 620), sparse=SparseRequest(config=replace(SELF, check="wait"))),
        job(8, ids(model, "Gerda", 20), 40, ignore_eos=True, sampling=SAMPLED),
    ]
    pair = {"draft": draft, "spec": SPARSE}
    served = serve(model, [(at_once, one) for one in asks], **pair)
    assert len(served.order()) > 16, "they took turns"
    for one in asks:
        assert served.of(one.job_id) == alone(serve, model, one, **pair), one.job_id
    statuses = {n: served.end(n).specprefill["status"] for n in (1, 2, 4, 7, 8)}
    assert statuses == {1: "active", 2: "active", 4: "active", 7: "active", 8: "skipped_min_tokens"}
    assert served.end(4).specprefill["check"]["status"] in ("equal", "revised")


def test_prompts_that_begin_alike(model, serve):
    """The same prompt twice at once, one that goes on from it, and both again: what is shared is not run twice once it
    is there, and nothing is mixed up."""
    first, slots = ids(model, "Anna", 400), Slots(model, None, None)
    longer = first + ids(model, "Next", 60)
    jobs = [job(1, first, 20), job(2, first, 20, sampling=SAMPLED), job(3, longer, 20), job(4, first), job(5, longer)]
    try:
        served = serve(model, [(at_once, one) for one in jobs[:3]], slots=slots)
        later = serve(model, [(at_once, one) for one in jobs[3:]], slots=slots)
    finally:
        slots.close()
    for one in jobs:
        assert (served if one.job_id < 4 else later).of(one.job_id) == alone(serve, model, one), one.job_id
    assert all(later.end(n).timings["cache_n"] > 390 for n in (4, 5))


def test_one_that_begins_while_another_goes_on_from_the_same_beginning(model, serve):
    """What the first has marked is copied to the second, in the middle of the first's work."""
    shared = ids(model, "Anna", 300)
    one = job(1, shared + ids(model, "Boris", 500), mark_at=(300,))
    other = job(2, shared + ids(model, "Celia", 30), mark_at=(300,))
    served = serve(model, [(at_once, one), (while_read(1, 7), other)])
    assert served.end(2).timings["cache_n"] == 300
    for asked in (one, other):
        assert served.of(asked.job_id) == alone(serve, model, asked)


def test_more_than_the_memory_holds(load_model, serve):
    """Two of 700 tokens in a memory of 1,024: keys and values of one lie with the host while the other runs."""
    small = load_model("built-in", max_context=1024, prefill_chunk=64)
    jobs = [job(n, ids(small, name, 700), 40, ignore_eos=True) for n, name in enumerate(("Anna", "Boris"), 1)]
    jobs.append(job(3, ids(small, "Hi", 9), 5))
    before = small.device.allocated.total(), len(small.runner.pool.free_pages)
    served = serve(small, [(at_once, jobs[0]), (while_read(1, 4), jobs[1]), (after(2, 3), jobs[2])])
    for one in jobs:
        assert served.of(one.job_id) == alone(serve, small, one)
    assert served.slices_before_first_piece(3) <= 2
    assert (small.device.allocated.total(), len(small.runner.pool.free_pages)) == before


WHERE = [("dense", 3), ("draft", 1), ("draft", 8), ("self", 3), ("self", 14)]
REST = [(kind, slices) for kind in ("dense", "draft", "self") for slices in (1, 3, 8, 14)]


@pytest.mark.parametrize(
    "kind, slices", [*WHERE, *(pytest.param(*one, marks=pytest.mark.exhaustive) for one in REST if one not in WHERE)]
)
def test_cancelled_beside_others(model, draft, serve, kind, slices):
    """Wherever it is, the others go on, and what it had is free: the same prompt is answered again."""
    config = {"dense": None, "draft": SPARSE, "self": SELF}[kind]
    sparse = SparseRequest(config is not None, config)
    gone, stays = job(1, ids(model, "Anna", 500), 20, sparse=sparse), job(2, ids(model, "Boris", 450), sparse=sparse)
    again, pair = job(3, ids(model, "Anna", 500), sparse=sparse), {"draft": draft, "spec": SPARSE}
    messages = [(at_once, gone), (at_once, stays), (while_read(1, slices), Cancel(1)), (at_once, again)]
    served = serve(model, messages, **pair)
    assert served.end(1).status == CANCELLED
    for one in (stays, again):
        assert served.of(one.job_id)[0] == alone(serve, model, one, **pair)[0]


def test_a_failure_is_one_s_own(model, serve, monkeypatch):
    jobs = [job(n, ids(model, name, 100), 12) for n, name in enumerate(("Anna", "Boris", "Celia"), 1)]
    want = [alone(serve, model, one) for one in jobs]
    draw, calls = Sampler.sample, iter(range(1000))

    def fail(self: Sampler, *arguments: object) -> int:
        if next(calls) == 10:
            raise ZeroDivisionError
        return draw(self, *arguments)

    monkeypatch.setattr(Sampler, "sample", fail)
    served = serve(model, [(at_once, one) for one in jobs])
    ends = [isinstance(served.end(n), Failed) for n in (1, 2, 3)]
    assert sum(ends) == 1
    for one, failed, right in zip(jobs, ends, want, strict=True):
        assert failed or served.of(one.job_id) == right


@pytest.mark.parametrize("number", [0, 3, 9])
def test_no_memory_for_one(model, serve, monkeypatch, number):
    """The one that finds none begins again when it is alone, if nothing of it was said; the others never notice."""
    jobs = [job(n, ids(model, name, 200), 8) for n, name in enumerate(("Anna", "Boris"), 1)]
    want = [alone(serve, model, one) for one in jobs]
    reserve, calls = Cache.reserve, iter(range(10**6))

    def fail(self: Cache, num_tokens: int) -> None:
        if next(calls) == number:
            raise OutOfMemoryError("KV cache: no room")
        reserve(self, num_tokens)

    monkeypatch.setattr(Cache, "reserve", fail)
    served = serve(model, [(at_once, one) for one in jobs])
    assert [served.of(one.job_id) for one in jobs] == want or number == 9
    assert sum(served.of(one.job_id) == right for one, right in zip(jobs, want, strict=True)) >= 1


def test_cancelled_while_one_waits_to_be_alone(model, serve, monkeypatch):
    """Neither the one that waits nor one that may not begin before it has to wait for the end of the others."""
    reserve, failed = Cache.reserve, []

    def fail_once(self: Cache, num_tokens: int) -> None:
        if num_tokens > 30 and not failed:
            failed.append(self)
            raise OutOfMemoryError("KV cache: no room")
        reserve(self, num_tokens)

    monkeypatch.setattr(Cache, "reserve", fail_once)
    endless = job(1, ids(model, "Anna", 30), 40, ignore_eos=True, sampling=SAMPLED)
    alone_later, behind = job(2, ids(model, "Boris", 90)), job(3, ids(model, "Hi", 9))
    messages = [(at_once, endless), (after(1, 2), alone_later), (after(1, 6), behind)]
    served = serve(model, [*messages, (after(1, 10), Cancel(3)), (after(1, 14), Cancel(2))])
    assert failed and isinstance(served.end(1), Done)
    for gone in (3, 2):
        assert served.end(gone).status == CANCELLED and not served.of(gone)[0]
        events = served.events[served.events.index(Cancel(gone)) : served.events.index(served.end(gone))]
        assert not any(isinstance(event, Piece) for event in events), "before anything else runs"


def test_states_go_to_the_host_where_the_device_is_full(model, serve, monkeypatch):
    """No answer fails because another's state has to be kept."""
    jobs = [job(n, ids(model, name, 90), 12) for n, name in enumerate(("Anna", "Boris"), 1)]
    want = [alone(serve, model, one) for one in jobs]

    def full(self: object, label: str) -> None:
        raise OutOfMemoryError(f"{label}: no room")

    monkeypatch.setattr("vkprefill.engine.cache_pool.CachePool.save_state", full)
    served = serve(model, [(at_once, one) for one in jobs])
    assert [served.of(one.job_id) for one in jobs] == want


def test_what_is_told_of_turns(model, serve):
    jobs = [job(n, ids(model, name, 200), 12) for n, name in enumerate(("Anna", "Boris"), 1)]
    served = serve(model, [(at_once, one) for one in jobs])
    both = [event for event in served.events if isinstance(event, Standings) and len(event.jobs) == 2]
    assert {tuple(one.place for one in event.jobs) for event in both} == {(0, 1)}
    assert {one.stage for event in both for one in event.jobs} == {"prefill", "decode"}
    assert both[-1].changes > 10 and all(0 <= one.share <= 1 for event in both for one in event.jobs)
    assert all(served.end(n).timings["wait_ms"] > 0 for n in (1, 2))
