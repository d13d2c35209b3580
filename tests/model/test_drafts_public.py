"""Answers with drafts, by lookup and through the public interface: those without."""

from dataclasses import replace

import pytest

import vkprefill
from tests.model.draft_scripts import (
    LENGTH,
    NGRAM,
    SAMPLINGS,
    Scripted,
    always,
)
from tests.model.sparse_requests import GREEDY, PROMPTS
from tests.prompts import EACH
from vkprefill import SamplingConfig, Session, SpecDecodeConfig
from vkprefill.drafting.drafters import Drafting, depth_of
from vkprefill.drafting.ngram import NGramDrafter
from vkprefill.engine.model import Model
from vkprefill.generation.options import AnswerOptions

BY_BLOCK = SpecDecodeConfig("draft-mtp", n_max=4, adaptive=False)


def hinted(model: Model, prompt: list[int], settings: SamplingConfig) -> tuple[list[int], list[list[int]]]:
    """(a prompt that begins with the answer to its rest, the ranges to keep, which leave the answer out).

    Random models do not repeat themselves; so all that there is to look up lies in what a sparse prefill dropped.
    """
    ranges = [[60, 60 + LENGTH]]
    filled = [0] * 60 + prompt[:LENGTH]
    answer = vkprefill.generate(model, filled, kept_ranges=ranges, max_tokens=60, sampling=settings).token_ids
    return answer + filled[len(answer) :], ranges


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_lookup_in_what_a_sparse_prefill_dropped(tiny, prompt, sampling):
    settings = SamplingConfig(**SAMPLINGS[sampling])
    prompt, ranges = hinted(tiny, prompt, settings)
    found = [
        vkprefill.generate(tiny, prompt, kept_ranges=ranges, max_tokens=50, sampling=settings, decode=decode)
        for decode in (SpecDecodeConfig("none"), NGRAM, SpecDecodeConfig("ngram", n_max=7))
    ]
    texts = [(one.token_ids, one.text, one.finish_reason, one.timings.predicted_n) for one in found]
    assert texts[0] == texts[1] == texts[2]
    drafts = [(one.timings.draft_n, one.timings.draft_n_accepted) for one in found]
    assert drafts[0] == (0, 0) and drafts[1][1] >= 25 and drafts[1][1] <= drafts[1][0]


def test_fewer_runs_than_tokens(tiny, prompt, monkeypatch):
    """What drafts are for: here each run gives more than two tokens on average."""
    prompt, ranges = hinted(tiny, prompt, GREEDY)
    runs = []
    run_rows = Model.run_rows
    monkeypatch.setattr(Model, "run_rows", lambda self, ids, *more: runs.append(len(ids)) or run_rows(self, ids, *more))
    found = vkprefill.generate(tiny, prompt, kept_ranges=ranges, max_tokens=50, sampling=GREEDY, decode=NGRAM)
    assert len(found.token_ids) == 50 and len(runs) < 25 and max(runs) == 5
    assert found.timings.draft_n == sum(runs) - len(runs)


@pytest.mark.parametrize(
    "sampling", [GREEDY, SamplingConfig(temperature=1.0, presence_penalty=1.0, seed=6)], ids=["greedy", "sampled"]
)
@pytest.mark.parametrize("case", EACH)
def test_answers_of_the_built_in_model(built_in, case, sampling):
    """With an end of the answer, also where it was drafted: nothing after it is run."""
    plain, *drafted = (
        vkprefill.generate(built_in, case.messages, max_tokens=48, sampling=sampling, decode=decode)
        for decode in (SpecDecodeConfig("none"), NGRAM, BY_BLOCK)
    )
    for found in drafted:
        assert (found.text, found.token_ids) == (plain.text, plain.token_ids)
        assert (found.finish_reason, found.timings.predicted_n) == (plain.finish_reason, plain.timings.predicted_n)


def test_the_built_in_block_knows_what_comes(built_in):
    """It was trained to: of three tokens a round two or more are right, over answers of its kind. At random: none."""
    answers = [
        vkprefill.generate(built_in, case["user"], sampling=GREEDY, decode=replace(BY_BLOCK, n_max=3))
        for case in PROMPTS[:6]
    ]
    drafted, accepted = (sum(getattr(a.timings, n) for a in answers) for n in ("draft_n", "draft_n_accepted"))
    assert [a.text for a in answers] == [case["answer"] for case in PROMPTS[:6]]
    assert accepted >= 2 / 3 * drafted and drafted >= 2 * len(answers)


def test_over_a_scored_prefill(built_in, draft):
    """The built-in pair copies its answers out of the prompt."""
    spec = vkprefill.SpecPrefillConfig(min_tokens=0, break_even=False)
    case = max(PROMPTS[:20], key=lambda case: case["n_tokens"])
    results = [
        vkprefill.generate(built_in, case["user"], draft=draft, spec=spec, decode=SpecDecodeConfig(kind))
        for kind in ("none", "ngram", "draft-mtp")
    ]
    assert [result.text for result in results] == 3 * [case["answer"]]
    for result in results[1:]:
        assert result.specprefill.status == "active" and result.timings.draft_n_accepted > 0


def test_sessions(built_in):
    """Turns with drafts are the turns without, with the same marks to go on from."""
    runs = []
    for decode in (SpecDecodeConfig("none"), NGRAM, BY_BLOCK):
        session, messages, found = Session(built_in, decode=decode), [], []
        for question in (PROMPTS[0]["user"], "And once more?", "Which pet does Robert keep?"):
            messages.append({"role": "user", "content": question})
            answer = session.generate(messages, max_tokens=8, sampling=GREEDY)
            messages.append({"role": "assistant", "content": answer.text})
            found.append((answer.token_ids, answer.timings.cache_n, answer.timings.prompt_n, list(session.prompt)))
        runs.append(found)
        session.close()
    assert runs[0] == runs[1] == runs[2]


def test_an_answer_that_is_dropped_inside_a_round(tiny, prompt, answers, monkeypatch):
    """The next turn goes on from what was given out."""
    prompt, wanted = prompt[:LENGTH], answers(prompt[:LENGTH], "greedy")
    kept = []
    for patterns in ([()] * 40, [(True,) * 4] * 40):
        drafting = Drafting([Scripted(wanted, LENGTH, patterns)], always())
        monkeypatch.setattr("vkprefill.generation.tokens.drafting_for", lambda *_, made=drafting: made)
        session = Session(tiny)
        stream = session.stream_ids(prompt, AnswerOptions(30, GREEDY))
        assert [next(stream).token_id for _ in range(9)] == wanted[:9]
        stream.close()
        marks = session.find([*session.prompt, 1], AnswerOptions())
        kept.append((list(session.prompt), session.cache.token_ids, session.cache.positions, marks.length))
        session.close()
    assert kept[0] == kept[1] and kept[0][0] == prompt + wanted[:8]


@pytest.mark.parametrize("kind", ["draft-mtp", "draft-mtp,ngram"])
def test_a_file_without_a_block(tiny, kind):
    decode = SpecDecodeConfig(kind)
    with pytest.raises(
        vkprefill.RequestError,
        match=f"^drafts of type {kind}: .* was loaded without a multi-token-prediction block; wanted",
    ):
        vkprefill.generate(tiny, "x", max_tokens=1, decode=decode)


def test_settings_of_another_kind(tiny):
    with pytest.raises(vkprefill.RequestError, match="^decode: found str, wanted SpecDecodeConfig"):
        vkprefill.generate(tiny, "x", max_tokens=1, decode="ngram")


def test_what_was_measured_outlives_an_answer(built_in):
    """The same settings, the same measurements; others begin anew."""
    first = depth_of(built_in, SpecDecodeConfig("ngram"))
    assert depth_of(built_in, SpecDecodeConfig("ngram")) is first
    assert depth_of(built_in, SpecDecodeConfig("ngram", n_max=2)) is not first
    for n in range(20):
        depth_of(built_in, SpecDecodeConfig("ngram", p_min=n / 20))
    assert depth_of(built_in, SpecDecodeConfig("ngram")) is not first, "only some are kept"


def test_drafters_know_the_whole_prompt(tiny, prompt, monkeypatch):
    seen = []
    made = NGramDrafter.__init__
    monkeypatch.setattr(
        NGramDrafter,
        "__init__",
        lambda self, ids, rows, least: seen.append((list(ids), rows)) or made(self, ids, rows, least),
    )
    vkprefill.generate(tiny, prompt[:30], kept_ranges=[(0, 8), (20, 30)], max_tokens=2, decode=NGRAM)
    assert seen == [(prompt[:30], 18)]
