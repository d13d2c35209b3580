"""What one turn asks of speculative prefill ends with it, where it is off otherwise: no other turn is pruned by it."""

from collections.abc import Iterator

import pytest

import vkprefill
from tests.model.sparse_requests import GREEDY, PROMPTS
from vkprefill import Session, SpecPrefillConfig
from vkprefill.engine.model import Model
from vkprefill.errors import RequestError
from vkprefill.generation.options import AnswerOptions
from vkprefill.generation.parts import GenerationPart
from vkprefill.server.engine.slots import Slots
from vkprefill.specprefill import guards
from vkprefill.specprefill.plan import SparseRequest

OWN = SpecPrefillConfig(
    scorer="self", break_even=False, select_mode="chunk", keep_ratio=0.05, protect_question=False, tool_guard=False
)
PLAIN = SparseRequest()


@pytest.fixture(scope="module")
def model(load_model) -> Model:
    return load_model("built-in", max_context=2048)


@pytest.fixture
def slots(model) -> Iterator[Slots]:
    made = Slots(model, None, None)
    yield made
    made.close()


@pytest.fixture
def prompts(model) -> list[list[int]]:
    return [model.tokenizer.encode(PROMPTS[number]["user"])[:200] for number in range(2)]


def served(slots: Slots, ids: list[int], asked: SparseRequest) -> tuple[list[int], GenerationPart]:
    options = AnswerOptions(3, GREEDY, asked)
    parts = list(slots.choose(ids, options).stream_ids(ids, options))
    return [part.token_id for part in parts if part.token_id is not None], parts[-1]


def assert_dense(slots: Slots, ids: list[int], asked: SparseRequest) -> GenerationPart:
    found, last = served(slots, ids, asked)
    assert found == vkprefill.generate(slots.model, ids, max_tokens=3, sampling=GREEDY).token_ids
    report = last.specprefill
    assert report.status == guards.DISABLED and report.kept_n + report.cached_n == len(ids)
    assert report.cached_ranges == ([[0, report.cached_n]] if report.cached_n else [])
    return last


@pytest.mark.parametrize("asked", [PLAIN, SparseRequest(config=SpecPrefillConfig(check="wait")), SparseRequest(False)])
def test_another_client(slots, prompts, asked):
    told, last = served(slots, prompts[0], SparseRequest(config=OWN))
    assert last.specprefill.status == guards.ACTIVE
    for ids in ([*prompts[0], *told, 5, 6], prompts[0], prompts[1]):
        assert_dense(slots, ids, asked)


def test_kept_ranges_of_another_client(slots, prompts):
    ids = prompts[0]
    told, last = served(slots, ids, SparseRequest(kept_ranges=[[0, 20], [180, 200]]))
    assert last.specprefill.status == guards.ACTIVE
    assert_dense(slots, ids, PLAIN)
    assert_dense(slots, [*ids, *told, 5], PLAIN)


def test_a_check_is_made_where_speculative_prefill_is_off(slots, prompts):
    config = SpecPrefillConfig(check="wait", tool_guard=False)
    found, last = served(slots, prompts[0], SparseRequest(config=config, kept_ranges=[[0, 20], [180, 200]]))
    assert last.specprefill.status == guards.ACTIVE and last.specprefill.check["status"] in ("equal", "differs")
    dense = assert_dense(slots, prompts[1], SparseRequest(config=config))
    assert dense.specprefill.check["status"] == "equal" and "scorer self would" in dense.specprefill.reason


def test_turns_of_a_session(model):
    with_own, plain = Session(model), Session(model)
    messages = [{"role": "user", "content": PROMPTS[0]["user"][:600]}]
    try:
        first = with_own.generate(messages, max_tokens=3, sampling=GREEDY, spec=OWN)
        assert first.specprefill.status == guards.ACTIVE
        messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And why?"}]
        found, wanted = (one.generate(messages, max_tokens=3, sampling=GREEDY) for one in (with_own, plain))
        assert found.token_ids == wanted.token_ids and found.specprefill.as_dict()["settings"] == {}
        with pytest.raises(RequestError, match="scorer draft: there is no draft model"):
            with_own.generate(messages, spec=SpecPrefillConfig(scorer="draft"))
    finally:
        with_own.close()
        plain.close()


def test_a_prompt_beyond_the_context_is_refused_in_one_way(load_model):
    small = load_model("built-in", max_context=300)
    ids = small.tokenizer.encode(PROMPTS[0]["user"])
    told = set()
    for spec in (None, OWN):
        with pytest.raises(vkprefill.ContextLengthError) as refused:
            vkprefill.generate(small, ids, spec=spec, max_tokens=2)
        told.add(str(refused.value))
    assert told == {f"context: the prompt needs {len(ids)} tokens, the context holds 300, the answer included"}
