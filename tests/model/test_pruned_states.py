"""No answer from another's pruned cache: who may go on from a state with holes, and what is said of it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import vkprefill
from vkprefill import SamplingConfig, SpecPrefillConfig
from vkprefill.generation.options import AnswerOptions
from vkprefill.server.engine.slots import Slots
from vkprefill.specprefill import guards
from vkprefill.specprefill.plan import RequestFacts, SparseRequest
from vkprefill.specprefill.protection import Protected

GREEDY = SamplingConfig(temperature=0.0)
SAMPLE = json.loads((Path(__file__).parent.parent / "data" / "demo_prompts.jsonl").open().readline())
PLAIN = SpecPrefillConfig(break_even=False, min_tokens=8192)
SPARSE = SpecPrefillConfig(
    break_even=False, lookahead=2, select_mode="chunk", keep_ratio=0.3, tail=24, protect_question=False
)
ASKED_PLAINLY = SparseRequest(config=PLAIN)
NOTHING_KEPT = SparseRequest(config=PLAIN, kept_ranges=[])


@pytest.fixture(params=[True, False], ids=["with a draft", "alone"])
def slots(request, built_in):
    chosen = request.getfixturevalue("draft") if request.param else None
    made = Slots(built_in, chosen, PLAIN if chosen else None)
    yield made
    made.close()


class Talk:
    """A client: its messages, rendered as the server does."""

    def __init__(self, slots: Slots, model: vkprefill.Model, question: str) -> None:
        self._slots, self._model = slots, model
        self.messages = [{"role": "user", "content": question}]

    def ask(self, asked: SparseRequest = ASKED_PLAINLY, **more: object) -> vkprefill.GenerationResult:
        template = self._model.chat_template
        ids = template.encode(self.messages)
        history = len(template.encode(self.messages, add_generation_prompt=False))
        options = AnswerOptions(8, GREEDY, asked, mark_at=(history,), **more)
        result = vkprefill.GenerationResult()
        for part in self._slots.choose(ids, options).stream_ids(ids, options):
            result.add(part)
        return result

    def go_on(self, answer: vkprefill.GenerationResult, question: str) -> None:
        self.messages += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": question}]

    def fresh(self) -> list[int]:
        return vkprefill.generate(self._model, self.messages, max_tokens=8, sampling=GREEDY).token_ids


def holes(result: vkprefill.GenerationResult) -> int:
    report = result.specprefill
    return report.cached_n - sum(end - start for start, end in report.cached_ranges)


def test_another_client_with_the_same_prompt(slots, built_in):
    """One leaves nearly all of the prompt out; whoever asks plainly gets the exact answer, before and after."""
    pruning, plain = (Talk(slots, built_in, SAMPLE["user"]) for _ in range(2))
    assert pruning.ask(NOTHING_KEPT).specprefill.kept_n < 5
    for _ in range(2):
        answer = plain.ask()
        assert answer.text == SAMPLE["answer"] and answer.token_ids == plain.fresh() and holes(answer) == 0
        dense = plain.ask(SparseRequest(enabled=False))
        assert dense.token_ids == plain.fresh() and holes(dense) == 0
        assert pruning.ask(NOTHING_KEPT).specprefill.kept_n < 600
    plain.go_on(answer, "Which pet does Robert keep?")
    assert plain.ask().token_ids == plain.fresh()


def test_only_what_would_be_pruned_alike(slots, built_in):
    talk = Talk(slots, built_in, SAMPLE["user"])
    ranges = SparseRequest(config=PLAIN, kept_ranges=[[0, 40], [300, 400]])
    first = talk.ask(ranges)
    same = talk.ask(ranges)
    assert holes(same) > 300 and same.token_ids == first.token_ids
    assert holes(talk.ask(replace(ranges, kept_ranges=[[0, 41], [300, 400]]))) == 0
    assert holes(talk.ask(replace(ranges, config=replace(PLAIN, tail=3)))) == 0
    other = Talk(slots, built_in, SAMPLE["user"][:-20] + " And who has a lizard?")
    assert holes(other.ask(ranges)) > 0, "the same tokens of the common beginning are kept"
    assert holes(other.ask(NOTHING_KEPT)) == 0


def test_the_conversation_itself_goes_on(slots, built_in):
    talk = Talk(slots, built_in, SAMPLE["user"])
    first = talk.ask(SparseRequest(config=PLAIN, kept_ranges=[[0, 100]]))
    talk.go_on(first, "Which pet does Robert keep?")
    other = Talk(slots, built_in, SAMPLE["user"])
    other.go_on(replace(first, text="1" + first.text), "Which pet does Robert keep?")
    assert holes(other.ask()) == 0, "another answer: not that conversation"
    pruned = talk.ask()
    report = pruned.specprefill
    if slots.has_draft:
        assert holes(pruned) == report.cached_n - sum(b - a for a, b in report.cached_ranges) > 300
        assert report.status == guards.SKIPPED_MIN_TOKENS
        assert f"; {holes(pruned)} of the {report.cached_n} cached tokens were left out before" in report.reason
        assert report.as_dict()["cached_ranges"][0] == [0, 100]
    else:
        assert holes(pruned) == 0 and pruned.token_ids == talk.fresh(), "without a draft a plain request is exact"
    dense = talk.ask(SparseRequest(enabled=False))
    assert holes(dense) == 0 and dense.token_ids == talk.fresh()


def test_exact_wins_a_tie(slots, built_in):
    talk = Talk(slots, built_in, SAMPLE["user"])
    ranges = SparseRequest(config=PLAIN, kept_ranges=[[0, 100]])
    talk.ask(ranges)
    exact = talk.ask()
    assert holes(exact) == 0
    again = talk.ask(ranges)
    assert holes(again) == 0 and again.specprefill.cached_n > 480


def test_kept_ranges_cannot_drop_the_fixed_beginning_nor_pass_the_tool_guard(slots, built_in):
    talk = Talk(slots, built_in, SAMPLE["user"])
    report = talk.ask(replace(NOTHING_KEPT, protected=Protected(fixed=((0, 64),)))).specprefill
    assert report.kept_ranges[0] == [0, 64] and report.status == guards.ACTIVE
    tools = replace(NOTHING_KEPT, facts=RequestFacts(tools=[{"name": "x"}]))
    guarded = talk.ask(tools)
    assert guarded.specprefill.status == guards.SKIPPED_TOOL_GUARD and guarded.token_ids == talk.fresh()


def test_cache_prompt_off(slots, built_in):
    talk = Talk(slots, built_in, SAMPLE["user"])
    talk.ask()
    assert talk.ask().specprefill.cached_n > 480
    answer = talk.ask(cache_prompt=False)
    assert answer.specprefill.cached_n == 0 and answer.token_ids == talk.fresh()


def test_a_scored_prompt_again(built_in, draft):
    """With the same settings: the same choice, from the cache. With others: not from that state."""
    slots = Slots(built_in, draft, SPARSE)
    talk, asked = Talk(slots, built_in, SAMPLE["user"]), SparseRequest(config=SPARSE)
    first, again = talk.ask(asked), talk.ask(asked)
    assert first.specprefill.status == guards.ACTIVE and again.token_ids == first.token_ids
    assert again.specprefill.cached_n > 480 and holes(again) > 200
    assert holes(talk.ask(replace(asked, config=replace(SPARSE, keep_ratio=0.4)))) == 0
    slots.close()
