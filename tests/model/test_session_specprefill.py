"""Conversations with a draft: pruned turns on pruned turns, edited history, thinking, dense turns, interrupts."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import vkprefill
from vkprefill import SamplingConfig, Session, SpecPrefillConfig
from vkprefill.specprefill import guards
from vkprefill.specprefill.score_programs import ScorePrograms
from vkprefill.specprefill.scorer import Scorer
from vkprefill.text.chat_template import ChatTemplate

GREEDY = SamplingConfig(temperature=0.0)
# Of further turns, which are short, all would be protected.
SPARSE = SpecPrefillConfig(
    break_even=False, lookahead=2, select_mode="chunk", keep_ratio=0.3, tail=24, protect_question=False
)
PROMPTS = [json.loads(line) for line in (Path(__file__).parent.parent / "data" / "demo_prompts.jsonl").open()]
LIMIT = 5
# Qwen3.5's manner: the thinking part is opened or closed in the generation prompt, and left out of the history.
THINKING = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content.split('</think>')[-1] + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{{- '<think>\\n' if enable_thinking else '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
)


def question(number: int) -> str:
    """Sentences and a question about them: 496 tokens the first, about 200 the others."""
    text = PROMPTS[number]["user"]
    return text if number == 0 else "Now this. " + text[:500] + "\n" + PROMPTS[number]["question"]


@pytest.fixture
def new_session(built_in, draft):
    """new_session(): closed at the end; all memory of both models is back then."""
    before = [(m.device.allocated.total(), len(m.runner.pool.free_pages)) for m in (built_in, draft)]
    made: list[Session] = []

    def make() -> Session:
        made.append(Session(built_in, draft, SPARSE, max_context=2048))
        return made[-1]

    yield make
    for session in made:
        session.close()
    assert [(m.device.allocated.total(), len(m.runner.pool.free_pages)) for m in (built_in, draft)] == before


@pytest.fixture(params=["template of the file", "thinking", "not thinking"])
def template_kwargs(request, built_in, monkeypatch) -> dict[str, object]:
    if request.param == "template of the file":
        return {}
    monkeypatch.setattr(built_in, "chat_template", ChatTemplate(THINKING, built_in.tokenizer))
    return {"enable_thinking": request.param == "thinking"}


def rows_of_prompt(session: Session, ids: list[int]) -> int:
    """How many of the cached rows are the prompt's."""
    return int(np.searchsorted(session.cache.positions, len(ids)))


def replayed(session: Session, rows: int, count: int) -> list[int]:
    """The greedy answer of a fresh cache that is fed the first rows of the session's."""
    model, cache = session.model, session.model.new_cache()
    logits = model.prefill(session.cache.token_ids[:rows], session.cache.positions[:rows], cache)
    answer = [int(logits.argmax())]
    while len(answer) < count:
        answer.append(int(model.decode(answer[-1], cache).argmax()))
    cache.close()
    return answer


def ask(
    session: Session, messages: list[dict[str, str]], content: str, **options: object
) -> vkprefill.GenerationResult:
    """One turn; adds it to messages. Whatever the turn did, the cache must hold what it says, and nothing else."""
    messages.append({"role": "user", "content": content})
    kwargs = options.get("template_kwargs", {})
    result = session.generate(messages, max_tokens=LIMIT, sampling=GREEDY, **options)
    ids = session.model.chat_template.encode(messages, **kwargs)
    report, cache = result.specprefill, session.cache
    rows = rows_of_prompt(session, ids)
    assert all(ids[p] == t for t, p in zip(cache.token_ids[:rows], cache.positions[:rows], strict=True))
    kept = [p for start, end in report.kept_ranges for p in range(start, end)]
    assert [p for p in cache.positions[:rows] if p >= report.cached_n] == kept
    assert result.timings.cache_n == report.cached_n and result.timings.prompt_n == report.kept_n == len(kept)
    assert report.prompt_n == len(ids) and result.timings.specprefill == report.status
    assert cache.positions[rows:] == list(range(len(ids), len(ids) + len(cache) - rows))
    assert result.token_ids == replayed(session, rows, LIMIT)[: len(result.token_ids)]
    messages.append({"role": "assistant", "content": result.text})
    return result


def test_five_turns_with_an_edited_history(new_session, template_kwargs):
    """Each turn prunes what is new and goes on from what is there; an edit goes back to a state before it."""
    session, options = new_session(), {"template_kwargs": template_kwargs}
    encode = session.model.chat_template.encode
    messages: list[dict[str, str]] = []
    for number in range(3):
        history = encode(messages[:-1], add_generation_prompt=False, **template_kwargs) if messages else []
        before = list(session.cache.positions)
        result = ask(session, messages, question(number), **options)
        report = result.specprefill
        assert report.status == guards.ACTIVE and report.kept_n < 0.6 * (report.prompt_n - report.cached_n)
        assert report.cached_n >= len(history) and (report.cached_n > 0) == (number > 0)
        rows = np.searchsorted(session.cache.positions, report.cached_n)
        assert session.cache.positions[:rows] == before[:rows], "what earlier turns left out stays out"

    history = len(encode(messages[:3], add_generation_prompt=False, **template_kwargs))
    messages[4:] = []  # the third question is asked anew
    edited = ask(session, messages, question(3), **options).specprefill
    assert history <= edited.cached_n < edited.prompt_n - 100 and edited.status == guards.ACTIVE
    last = ask(session, messages, question(4), **options).specprefill
    assert last.cached_n >= edited.prompt_n - 40 and last.status == guards.ACTIVE

    messages[0] = {"role": "user", "content": "Something else. " + question(5)}
    del messages[1:]
    messages.pop()
    assert ask(session, messages, "Something else. " + question(5), **options).specprefill.cached_n < 20


def test_answers_are_right(new_session):
    session, messages = new_session(), []
    right = [ask(session, messages, question(0)).text == PROMPTS[0]["answer"]]
    for number in (0, 1):
        sample = PROMPTS[number]
        messages = [{"role": "user", "content": sample["user"]}]
        right.append(session.generate(messages, max_tokens=8, sampling=GREEDY).text == sample["answer"])
    assert sum(right) >= 2


def test_draft_scores_only_what_is_new(new_session, monkeypatch):
    """A second turn's scoring starts where the first one's ended."""
    cached, score = [], Scorer.score_in_slices

    def noted(self, *args: object, **options: object):
        found = yield from score(self, *args, **options)
        cached.append(found.cached_n)
        return found

    monkeypatch.setattr(Scorer, "score_in_slices", noted)
    session, messages = new_session(), []
    lengths = [ask(session, messages, question(number)).specprefill.prompt_n for number in range(3)]
    assert cached == [0, *lengths[:2]]


def fresh(session: Session, messages: list[dict[str, str]]) -> list[int]:
    return vkprefill.generate(session.model, messages, max_tokens=LIMIT, sampling=GREEDY).token_ids


def test_dense_turns_never_use_a_pruned_state(new_session):
    session, messages = new_session(), []
    first = ask(session, messages, question(0), specprefill=False)
    assert first.specprefill.status == guards.DISABLED and first.token_ids == fresh(session, messages[:1])
    exact = len(session.model.chat_template.encode(messages[:1]))

    assert ask(session, messages, question(1)).specprefill.status == guards.ACTIVE
    dense = ask(session, messages, question(2), specprefill=False)
    assert dense.token_ids == fresh(session, messages[:-1])
    assert dense.specprefill.cached_ranges == [[0, dense.specprefill.cached_n]], "only what was exact"
    assert session.cache.positions == list(range(len(session.cache)))

    sparse = ask(session, messages, question(3))
    assert sparse.specprefill.status == guards.ACTIVE and sparse.specprefill.cached_n > exact, (
        "on top of an exact state"
    )
    dense = ask(session, messages, "Thank you.", specprefill=False)
    assert dense.token_ids == fresh(session, messages[:-1])


def test_the_same_turn_dense_after_sparse(new_session):
    session, messages = new_session(), []
    ask(session, messages, question(0))
    dense = session.generate(messages[:1], max_tokens=LIMIT, sampling=GREEDY, specprefill=False)
    assert dense.specprefill.cached_n == 0 and dense.token_ids == fresh(session, messages[:1])


def test_skipped_turn_on_a_pruned_state(new_session):
    """A guard that skips is no demand for an exact state: the cache is used, and said to be."""
    session, messages = new_session(), []
    ask(session, messages, question(0))
    spec = SpecPrefillConfig(min_tokens=4000)
    result = ask(session, messages, question(1), spec=spec)
    assert result.specprefill.status == guards.SKIPPED_MIN_TOKENS and result.specprefill.cached_n > 400
    assert result.specprefill.kept_n == result.specprefill.prompt_n - result.specprefill.cached_n
    dense = ask(session, messages, question(2), specprefill=False)
    assert dense.specprefill.cached_n == 0 and dense.token_ids == fresh(session, messages[:-1])


def test_tools_switch_it_off_for_the_turn(new_session):
    session, messages = new_session(), []
    tools = [{"type": "function", "function": {"name": "look"}}]
    assert ask(session, messages, question(0), tools=tools).specprefill.status == guards.SKIPPED_TOOL_GUARD
    assert ask(session, messages, question(1)).specprefill.status == guards.ACTIVE


def test_kept_ranges_of_another_session(new_session, monkeypatch):
    """The ranges of a session's answers, given to another one: the same answers, nothing scored."""
    one, other, first, second = new_session(), new_session(), [], []
    results = [ask(one, first, question(number)) for number in range(2)]
    monkeypatch.setattr(Scorer, "score_in_slices", lambda *_, **__: pytest.fail("scored"))
    for number, result in enumerate(results):
        again = ask(other, second, question(number), kept_ranges=result.specprefill.kept_ranges)
        assert again.token_ids == result.token_ids
        assert again.specprefill.kept_ranges == result.specprefill.kept_ranges


# -- interrupts --------------------------------------------------------------------------------------------------------


class StopAt:
    """A progress callback that is interrupted at its n-th call."""

    def __init__(self, number: int | None = None) -> None:
        self.number, self.calls = number, 0

    def __call__(self, *_: object) -> None:
        self.calls += 1
        if self.calls - 1 == self.number:
            raise KeyboardInterrupt


Interrupt = Callable[[Session, list[dict[str, str]]], None]


def three_turns(session: Session, interrupt: Interrupt | None) -> list[list[int]]:
    """Answers to three turns, with an interrupted attempt at the second before it; closes the session."""
    messages: list[dict[str, str]] = []
    answers = [ask(session, messages, question(1)).token_ids]
    if interrupt:
        with pytest.raises(KeyboardInterrupt):
            interrupt(session, [*messages, {"role": "user", "content": question(2)}])
    for number in (2, 3):
        result = ask(session, messages, question(number))
        assert result.specprefill.cached_n > 100
        # where the attempt came as far as the generation prompt, the little that is left is all kept
        assert result.specprefill.status in (guards.ACTIVE, *([guards.KEPT_ALL] if interrupt and number == 2 else []))
        answers.append(result.token_ids)
    session.close()
    return answers


def test_interrupts_at_any_time(new_session, monkeypatch):
    """In scoring, in the history, in the rest, in look-ahead, in the answer: the same answers afterwards."""
    count, session, messages = StopAt(), new_session(), []
    ask(session, messages, question(1))
    ask(session, messages, question(2), progress=count)
    session.close()
    want = three_turns(new_session(), None)

    def in_progress(number: int) -> Interrupt:
        return lambda session, turn: session.generate(turn, sampling=GREEDY, progress=StopAt(number))

    def in_answer(session: Session, turn: list[dict[str, str]]) -> None:
        for _ in session.stream(turn, max_tokens=LIMIT, sampling=GREEDY):
            raise KeyboardInterrupt

    def in_lookahead(session: Session, turn: list[dict[str, str]]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(ScorePrograms, "total", StopAt(0))  # after the last of it
            session.generate(turn, max_tokens=LIMIT, sampling=GREEDY)

    assert count.calls >= 4
    attempts = [in_progress(number) for number in (0, count.calls // 2, count.calls - 1)]
    for attempt in [*attempts, in_answer, in_lookahead]:
        assert three_turns(new_session(), attempt) == want
