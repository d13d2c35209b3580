"""What is remembered of prompts, and for how long: bounded by memory, the least valuable goes first."""

import gc
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import vkprefill
from vkprefill import SamplingConfig, SpecPrefillConfig
from vkprefill.engine.cache import Cache
from vkprefill.generation.options import AnswerOptions
from vkprefill.server.engine.slots import CacheLimits, Slots
from vkprefill.specprefill import guards
from vkprefill.specprefill.plan import SparseRequest
from vkprefill.specprefill.scorer import Scorer

GREEDY = SamplingConfig(temperature=0.0)
SAMPLES = [json.loads(line) for line in (Path(__file__).parent.parent / "data" / "demo_prompts.jsonl").open()]
SPARSE = SpecPrefillConfig(break_even=False, lookahead=2, select_mode="chunk", keep_ratio=0.3, tail=24)


@pytest.fixture
def new_slots():
    """new_slots(model, ...): closed at the end; all memory is back then."""
    made, before = list[Slots](), dict[vkprefill.Model, tuple[int, int]]()

    def held(model: vkprefill.Model) -> tuple[int, int]:
        return model.device.allocated["snapshots"], len(model.runner.pool.free_pages)

    def make(model: vkprefill.Model, draft: vkprefill.Model | None = None, **limits: int) -> Slots:
        for one in filter(None, (model, draft)):
            before.setdefault(one, held(one))
        made.append(Slots(model, draft, SPARSE if draft else None, CacheLimits(**limits)))
        return made[-1]

    yield make
    for slots in made:
        slots.close()
        assert slots.figures()["host_bytes"] == 0
    assert {model: held(model) for model in before} == before


def ask(slots: Slots, messages: list[dict[str, str]], *, sparse: bool = False, most: int = 4):
    """One answer, as the server gives it; exact ones are compared with a run without a cache."""
    model = slots.model
    ids = model.chat_template.encode(messages)
    history = len(model.chat_template.encode(messages, add_generation_prompt=False))
    options = AnswerOptions(most, GREEDY, SparseRequest(enabled=sparse), mark_at=(history,))
    result = vkprefill.GenerationResult()
    for part in slots.choose(ids, options).stream_ids(ids, options):
        result.add(part)
    return result


def user(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


def fresh(model: vkprefill.Model, messages: list[dict[str, str]], most: int = 4) -> list[int]:
    return vkprefill.generate(model, messages, max_tokens=most, sampling=GREEDY).token_ids


DOCUMENT = SAMPLES[0]["user"].rsplit("\n", 1)[0]


@pytest.mark.parametrize("with_draft", [False, True])
def test_a_second_question_on_the_same_document(built_in, draft, new_slots, with_draft):
    """Nearly all of it is found, and the answer is that of a fresh run."""
    slots = new_slots(built_in, draft if with_draft else None)
    questions = [user(f"{DOCUMENT}\n{text}") for text in ("Which pet does Robert keep?", "Who has a lizard, then?")]
    assert ask(slots, questions[0]).timings.cache_n == 0
    answer = ask(slots, questions[1])
    assert answer.timings.prompt_n < 30 and answer.timings.cache_n > 450
    assert answer.token_ids == fresh(built_in, questions[1])
    assert ask(slots, questions[0]).timings.prompt_n < 30, "the first one is still there"


def test_the_draft_finds_the_document_too(built_in, draft, new_slots, monkeypatch):
    cached, score = [], Scorer.score_in_slices

    def noted(self, *args: object, **options: object):
        found = yield from score(self, *args, **options)
        cached.append((found.cached_n, found.values))
        return found

    monkeypatch.setattr(Scorer, "score_in_slices", noted)
    slots = new_slots(built_in, draft)
    questions = [user(f"{DOCUMENT}\n{text}") for text in ("Which pet does Robert keep?", "Who has a lizard, then?")]
    for messages in questions:
        assert ask(slots, messages, sparse=True).specprefill.status == guards.ACTIVE
    assert cached[0][0] == 0 and cached[1][0] > 450
    slots.close()
    ask(new_slots(built_in, draft), questions[1], sparse=True)
    assert np.array_equal(cached[2][1], cached[1][1]), "the same bits as scored from the beginning"


def test_a_time_stamp_at_the_end(built_in, new_slots):
    slots = new_slots(built_in)
    first, second = (user(f"{DOCUMENT} It is {time} now.") for time in ("10:31", "10:32"))
    ask(slots, first)
    answer = ask(slots, second)
    assert answer.timings.prompt_n <= 64 and answer.token_ids == fresh(built_in, second)


def test_a_client_that_drops_its_oldest_turn(built_in, new_slots):
    slots, system = new_slots(built_in), {"role": "system", "content": "Answer in one word. " * 12}
    model, turns = built_in, []
    fixed = len(model.chat_template.encode([system, *user("x")])) - 6

    def turn() -> vkprefill.GenerationResult:
        messages = [system, *turns]
        ids = model.chat_template.encode(messages)
        options = AnswerOptions(4, GREEDY, SparseRequest(enabled=False), mark_at=(fixed, len(ids) - 4))
        result = vkprefill.GenerationResult()
        for part in slots.choose(ids, options).stream_ids(ids, options):
            result.add(part)
        assert result.token_ids == fresh(model, messages)
        turns.append({"role": "assistant", "content": result.text})
        return result

    for number in range(3):
        turns += user(f"Question {number}: " + SAMPLES[number]["user"][:300])
        turn()
    turns += user("And now?")
    del turns[:2]
    assert turn().timings.cache_n >= fixed


def talk(
    slots: Slots, talks: list[list[dict[str, str]]], turns: int, side_requests: int, system: str = ""
) -> list[float]:
    """Conversations in turn, each turn followed by side requests about it, with a system prompt that they share or
    none; the cached share of what was there.
    """
    shares, instruction = [], [{"role": "system", "content": system}] if system else []
    for turn in range(turns):
        for number, messages in enumerate(talks):
            before = len(slots.model.chat_template.encode(messages, add_generation_prompt=False)) if turn else 0
            messages += user(f"Turn {turn} of {number}. Which pet does Robert keep?")
            answer = ask(slots, messages)
            if turn:
                shares.append(answer.timings.cache_n / before)
            messages.append({"role": "assistant", "content": answer.text})
            for side in range(side_requests):
                about = f"Title {side}, {turn}, {number}: {messages[-2]['content']}"
                ask(slots, instruction + user(about + " Brief!" * 20))
    return shares


TITLE = "Write a concise title of three to five words for what the user asks. "


def test_two_users_with_side_requests(load_model, new_slots):
    """In memory that holds little more than the two conversations."""
    model = load_model("built-in", max_context=2048)
    slots = new_slots(model)
    talks = [user(f"User {n}. {DOCUMENT}") + [{"role": "assistant", "content": "Yes."}] for n in range(2)]
    shares = talk(slots, talks, 10, 2)
    assert min(shares[2:]) > 0.95 and slots.figures()["evictions"] > 10
    for messages in talks:
        messages += user("Who has a lizard?")
        assert ask(slots, messages).token_ids == fresh(model, messages)


@pytest.mark.parametrize("side_requests", [2, 5])
def test_side_requests_with_a_shared_system_prompt(load_model, new_slots, side_requests):
    """They start from each other's, and make room for each other: two conversations fit beside one of them."""
    slots = new_slots(load_model("built-in", max_context=2048))
    talks = [user(f"User {n}. {DOCUMENT}") + [{"role": "assistant", "content": "Yes."}] for n in range(2)]
    shares = talk(slots, talks, 5, side_requests, TITLE * 2)
    assert min(shares) > 0.95 and not slots.model.runner.pool.free_pages


def test_new_users_are_not_kept_out_by_old_ones(load_model, new_slots):
    slots = new_slots(load_model("built-in", max_context=2048))
    for group in range(2):
        talks = [user(f"Group {group}, {n}. {DOCUMENT}") + [{"role": "assistant", "content": "Yes."}] for n in range(2)]
        assert min(talk(slots, talks, 5, 2, TITLE * 2)[4:]) > 0.95


def test_many_side_requests_in_a_row(load_model, new_slots):
    slots = new_slots(load_model("built-in", max_context=1024))
    ask(slots, user(DOCUMENT))
    for number in range(20):
        instruction = {"role": "system", "content": f"{number % 3}. {TITLE}"}
        ask(slots, [instruction, *user(f"{number}. Which pet is it?" + " Brief!" * 20)])
    assert not slots.model.runner.pool.free_pages and slots.figures()["evictions"] > 10
    assert ask(slots, user(DOCUMENT)).timings.prompt_n < 30


def test_what_two_hold_counts_once(load_model, new_slots):
    """Of two questions on a document one makes room, before another short prompt: it costs a question to run again."""
    slots = new_slots(load_model("built-in", max_context=1536))
    note, *questions = [user(f"A note. {DOCUMENT[:600]}"), *(user(f"{DOCUMENT}\n{q}") for q in ("Who?", "Which pet?"))]
    for messages in (note, *questions, user("Celia. " + SAMPLES[1]["user"][:1200])):
        ask(slots, messages)
    assert slots.figures()["evictions"] == 1
    assert all(ask(slots, messages).timings.prompt_n < 30 for messages in (note, *questions))


def test_five_users_in_rotation(load_model, new_slots):
    model = load_model("built-in", max_context=4096)
    slots = new_slots(model)
    shares = talk(slots, [user(f"User {n}. {DOCUMENT[:600]}") for n in range(5)], 3, 1)
    assert min(shares) > 0.95


def test_marks_lie_on_the_host_up_to_a_budget(built_in, new_slots):
    size = built_in.runner.pool.state.num_bytes
    slots = new_slots(built_in, host_bytes=5 * size)
    talks = [user(f"User {n}. {DOCUMENT[:500]}") for n in range(4)]
    for messages in talks:
        ask(slots, messages)
        assert slots.figures()["host_bytes"] <= 5 * size
        assert built_in.device.allocated["snapshots"] <= 3 * size
    figures = slots.figures()
    assert figures["conversations"] >= 2 and min(figures["device_bytes"], figures["host_bytes"]) > 0
    for messages in reversed(talks):
        assert ask(slots, messages).token_ids == fresh(built_in, messages)


def test_without_memory_of_the_host_only_the_one_in_use_is_remembered(built_in, new_slots):
    slots, talks = new_slots(built_in, host_bytes=0), [user(f"User {n}. {DOCUMENT[:300]}") for n in range(2)]
    cached = [ask(slots, talks[n]).timings.cache_n > 0 for n in (0, 0, 1, 1, 0)]
    assert cached == [False, True, False, True, False] and slots.figures()["conversations"] == 1


def test_at_most_so_many_conversations(built_in, new_slots):
    slots = new_slots(built_in, conversations=2)
    for number in range(4):
        ask(slots, user(f"{number} " + DOCUMENT[:300]))
    assert slots.figures()["conversations"] == 2 and slots.figures()["evictions"] == 2


def test_a_state_on_the_host_has_the_same_bits(tiny):
    cache = tiny.new_cache()
    tiny.extend(list(range(90)), cache)
    here, there = cache.snapshot(), cache.snapshot()
    there.to_host()
    assert there.host_bytes == here.device_bytes > 0 == there.device_bytes
    direct = cache.snapshot(on_host=True)
    found = []
    for snapshot in (here, there, direct):
        cache.restore(snapshot)
        found.append(tiny.prefill([3, 1, 4], cache=cache))
    cache.restore(there)
    cache.let_go()
    with pytest.raises(vkprefill.RequestError, match="restore a snapshot"):
        tiny.prefill([3, 1, 4], cache=cache)
    cache.restore(there)
    found.append(tiny.prefill([3, 1, 4], cache=cache))
    assert all(np.array_equal(found[0], other) for other in found[1:])
    cache.close()


@pytest.mark.parametrize("moment", range(12))
def test_a_collector_in_the_middle_of_taking_pages(tiny, moment):
    """A cache in a circle of garbage is closed when the collector runs: no page gets two owners, whenever that is."""
    pool, kept, calls = tiny.runner.pool, Cache(tiny.runner.pool, 1536), 0
    total = len(pool.free_pages)

    def collect(frame: object, event: str, _: object) -> None:
        nonlocal calls
        if event == "c_return" and "cache" in frame.f_code.co_filename:
            calls += 1
            if calls == moment + 1:
                gc.collect()

    garbage = Cache(pool, 512)
    garbage.reserve(300)
    garbage.itself = garbage
    del garbage
    gc.disable()
    try:
        sys.setprofile(collect)
        kept.reserve(800)
    finally:
        sys.setprofile(None)
        gc.enable()
    gc.collect()
    assert len(set(kept.pages)) == len(kept.pages) == 4 and len(pool.free_pages) == total - 4
    assert not set(kept.pages) & set(pool.free_pages)
    kept.close()
    assert len(pool.free_pages) == total
