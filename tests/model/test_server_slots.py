"""Conversations that share the memory of a model: which one a prompt goes on from, and which one makes room."""

import pytest

import vkprefill
from vkprefill import SamplingConfig
from vkprefill.generation.options import AnswerOptions
from vkprefill.server.engine.slots import Slots

GREEDY = SamplingConfig(temperature=0.0)
SYSTEM = "Answer in one word. " * 10


@pytest.fixture
def small(load_model):
    """Room for 1,024 tokens, in pages of 256."""
    return load_model("built-in", max_context=1024)


@pytest.fixture
def slots(small):
    before = small.device.allocated.total(), len(small.runner.pool.free_pages)
    made = Slots(small, None, None)
    yield made
    made.close()
    assert (
        small.device.allocated.total(),
        len(small.runner.pool.free_pages),
    ) == before and small.runner.pool.on_full is None


def answer(slots: Slots, ids: list[int], mark_at: tuple[int, ...] = (), max_tokens: int = 3) -> tuple[list[int], int]:
    """(token ids, cached tokens); the ids must be those of a run alone."""
    session = slots.choose(ids, AnswerOptions())
    parts = list(session.stream_ids(ids, AnswerOptions(max_tokens, GREEDY, mark_at=mark_at)))
    found = [p.token_id for p in parts if p.token_id is not None]
    return found, parts[-1].timings.cache_n


def alone(model: vkprefill.Model, ids: list[int]) -> list[int]:
    return vkprefill.generate(model, ids, max_tokens=3, sampling=GREEDY).token_ids


def encode(model: vkprefill.Model, text: str, length: int) -> list[int]:
    """A prompt of this many tokens."""
    return model.tokenizer.encode(text + " The river was quiet." * length)[:length]


def test_memory_goes_to_those_that_need_it(slots, small):
    """Three prompts of 400 tokens take two pages each; there are four."""
    prompts = [encode(small, name, 400) for name in ("Anna", "Boris", "Celia")]
    want = []
    slots.close()
    for prompt in prompts:
        want.append(alone(small, prompt))
    again = Slots(small, None, None)
    try:
        for prompt, tokens in zip(prompts, want, strict=True):
            assert answer(again, prompt, (399,)) == (tokens, 0)
        assert answer(again, prompts[2], (399,)) == (want[2], 399) and answer(again, prompts[1], (399,)) == (
            want[1],
            399,
        )
        assert answer(again, prompts[0], (399,)) == (want[0], 0), "it had made room for the third"
        assert answer(again, prompts[1], (399,)) == (want[1], 399), (
            "used after the third, which made room for the first"
        )
    finally:
        again.close()


def test_other_conversations_with_the_same_system_prompt(slots, small):
    shared = small.tokenizer.encode(SYSTEM)
    ids = [shared + small.tokenizer.encode(f" Question {n}: " + "why? " * 60) for n in range(3)]
    marks = [(len(shared), len(one) - 1) for one in ids]
    cached = [answer(slots, one, mark)[1] for one, mark in zip(ids, marks, strict=True)]
    assert cached == [0, len(shared), len(shared)]
    assert [answer(slots, one, mark)[1] for one, mark in zip(ids, marks, strict=True)] == [len(one) - 1 for one in ids]


def test_an_answer_that_fills_the_memory(slots, small):
    """Idle conversations make room while an answer grows."""
    for name in ("Anna", "Boris"):
        answer(slots, encode(small, name, 300))
    noise = SamplingConfig(temperature=100.0, top_k=0, presence_penalty=0.0, seed=1)
    ids = encode(small, "Celia", 20)
    session = slots.choose(ids, AnswerOptions())
    parts = list(session.stream_ids(ids, AnswerOptions(600, noise)))
    assert parts[-1].timings.predicted_n > 500, "more than was free at its start"


def test_forget(slots, small):
    ids = encode(small, "Anna", 50)
    answer(slots, ids, (49,))
    session = slots.choose(ids, AnswerOptions())
    slots.forget(session)
    assert not session.prompt and slots.choose([1, 2], AnswerOptions()) is session, "it is the first to be used again"
    assert not slots.forget_others()
    answer(slots, ids, (49,))
    assert slots.choose([1, 2], AnswerOptions()) is not session and slots.forget_others() and not session.prompt
