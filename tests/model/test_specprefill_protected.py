"""What people ask reaches the model whatever the draft thinks of it: in calls, sessions, raw prompts and dry runs."""

from dataclasses import replace

import numpy as np
import pytest

import vkprefill
from tests.model.sparse_requests import GREEDY, PROMPTS
from vkprefill import Session, SpecPrefill, SpecPrefillConfig
from vkprefill.explain.explanation import explain
from vkprefill.generation.prompt import encode_prompt
from vkprefill.specprefill import guards

LITTLE = SpecPrefillConfig(break_even=False, select_mode="chunk", keep_ratio=0.1, lookahead=0, tool_guard=False)
TEXT, _, QUESTION = next(p["user"] for p in PROMPTS if 1000 < p["n_tokens"] < 1300).rpartition("\n")
SENTENCES = TEXT.split(". ")
MIDDLE = len(SENTENCES) // 2
PLACES = {
    "beginning": f"{QUESTION}\n{TEXT}",
    "middle": ". ".join(SENTENCES[:MIDDLE]) + f".\n\n{QUESTION}\n\n" + ". ".join(SENTENCES[MIDDLE:]),
    "end": f"{TEXT}\n{QUESTION}",
}


@pytest.fixture(scope="module")
def pair(built_in, draft):
    """A draft that finds nothing important: what is kept is kept for other reasons."""
    made = SpecPrefill(built_in, draft, LITTLE)
    score = made._scorer.score_in_slices

    def indifferent(ids, config, **options):
        scored = yield from score(ids[-8:], config)
        return replace(scored, values=np.ones(len(ids), np.float32))

    made._scorer.score_in_slices = indifferent
    yield made
    made.close()


def kept_text(tokenizer, token_ids, report) -> str:
    """Kept stretches, a bar between them."""
    return "|".join(tokenizer.decode(token_ids[start:end]) for start, end in report.kept_ranges)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("raw", [False, True])
def test_the_question_is_kept(pair, place, raw):
    text = PLACES[place]
    result = vkprefill.generate(pair.target, text, draft=pair, spec=LITTLE, raw=raw, max_tokens=1, sampling=GREEDY)
    report = result.specprefill
    assert report.status == guards.ACTIVE and report.kept_n < 0.25 * report.prompt_n
    prompt = encode_prompt(pair.target, text, raw=raw)
    assert QUESTION in kept_text(pair.target.tokenizer, prompt.token_ids, report)
    assert pair.plan(prompt.token_ids).report.kept_ranges, "tokens alone"
    assert QUESTION in kept_text(pair.target.tokenizer, prompt.token_ids, pair.plan(prompt.token_ids).report)
    explained = explain(pair, prompt.token_ids, protected=prompt.protected).report
    assert explained.kept_ranges == report.kept_ranges


def test_not_where_the_setting_says_so(pair):
    ids = encode_prompt(pair.target, PLACES["middle"]).token_ids
    plan = pair.plan(ids, config=replace(LITTLE, protect_question=False))
    assert QUESTION not in kept_text(pair.target.tokenizer, ids, plan.report)


def test_system_messages_in_a_session(pair):
    system = {"role": "system", "content": "Answer in one short sentence, as a friend would. " * 8}
    with_system = [system, {"role": "user", "content": PLACES["end"]}]
    session = Session(pair.target, pair)
    try:
        first = session.generate(with_system, max_tokens=1, sampling=GREEDY)
        ids = pair.target.chat_template.encode(with_system)
        kept = kept_text(pair.target.tokenizer, ids, first.specprefill)
        assert first.specprefill.status == guards.ACTIVE and system["content"].strip() in kept and QUESTION in kept
        turn = [*with_system, {"role": "assistant", "content": first.text}]
        turn.append({"role": "user", "content": PLACES["beginning"]})
        second = session.generate(turn, max_tokens=1, sampling=GREEDY).specprefill
        ids = pair.target.chat_template.encode(turn)
        assert second.cached_n > 900 and QUESTION in kept_text(pair.target.tokenizer, ids, second)
    finally:
        session.close()


def test_a_system_prompt_of_a_call(pair):
    said = "Answer in one short sentence, as a friend would. " * 8
    options = dict(draft=pair, spec=LITTLE, max_tokens=1, sampling=GREEDY)
    report = vkprefill.generate(pair.target, PLACES["end"], system_prompt=said, **options).specprefill
    ids = encode_prompt(pair.target, PLACES["end"], system_prompt=said).token_ids
    assert said.strip() in kept_text(pair.target.tokenizer, ids, report)


def test_a_limit_that_acts_is_named(pair):
    ids = encode_prompt(pair.target, PLACES["end"]).token_ids
    new = len(ids)
    most = pair.plan(ids, config=replace(LITTLE, keep_ratio=0.9)).report
    assert most.kept_n > 0.88 * new and "max_keep" not in most.reason
    capped = pair.plan(ids, config=replace(LITTLE, keep_ratio=0.9, max_keep=300)).report
    assert capped.kept_n <= 300
    assert capped.reason == (
        f"the draft chose {capped.kept_n} of {new} new tokens; max_keep 300 left out {most.kept_n - capped.kept_n} more"
    )
    ids = (ids * 3)[:3500]
    by_mass = pair.plan(ids, config=replace(LITTLE, select_mode="mass")).report
    assert "; max_keep 2000, the limit of mode mass, left out " in by_mass.reason and by_mass.kept_n <= 2000
    assert "max_keep" not in pair.plan(ids, config=replace(LITTLE, keep_ratio=0.9)).report.reason
