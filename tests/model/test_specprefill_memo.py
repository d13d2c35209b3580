"""A draft's work that is not done twice: scores of equal prompts, recorded programs."""

from dataclasses import replace

import numpy as np
import pytest

import vkprefill
from tests.model.conftest import BUILT_IN
from tests.model.sparse_requests import GREEDY, PROMPTS, SPARSE
from vkprefill import SpecPrefill
from vkprefill.engine.forward import ForwardPass
from vkprefill.specprefill import score_programs
from vkprefill.specprefill.pipeline import MEMO_SIZE
from vkprefill.specprefill.scorer import Scorer


@pytest.fixture
def scorings(monkeypatch) -> list[int]:
    """Lengths of the prompts that a draft really scored."""
    calls, score = [], Scorer.score_in_slices

    def counted(self, token_ids, *args, **options):
        calls.append(len(token_ids))
        return score(self, token_ids, *args, **options)

    monkeypatch.setattr(Scorer, "score_in_slices", counted)
    return calls


def test_equal_prompt_is_not_scored_again(pair, prompt, scorings):
    first, again = pair.plan(prompt), pair.plan(list(prompt))
    assert scorings == [300] and again.kept.tolist() == first.kept.tolist()
    assert np.array_equal(again.importance, first.importance) and again.report.reason == first.report.reason
    assert (again.report.score_ms, again.report.lookahead_ms, again.report.select_ms) == (0, 0, 0)
    for i, settings in enumerate([{"keep_ratio": 0.5}, {"pool_size": 1}, {"lookahead": 3}, {"protect": ((50, 60),)}]):
        pair.plan(prompt, config=replace(SPARSE, **settings))
        assert len(scorings) == 2 + i, "other settings"
    pair.plan(prompt[:-1])
    pair.plan(prompt, cached_n=40)
    assert scorings[-2:] == [299, 300], "another prompt, another beginning in the cache"
    count = len(scorings)
    pair.plan(prompt)
    assert len(scorings) == count


def test_memo_forgets_the_oldest(pair, prompt, scorings):
    for length in range(40, 40 + MEMO_SIZE):
        pair.plan(prompt[:length])
    pair.plan(prompt[:40])
    pair.plan(prompt[:100])
    assert len(pair._memo) == MEMO_SIZE and len(scorings) == MEMO_SIZE + 1
    pair.plan(prompt[:40])
    assert len(scorings) == MEMO_SIZE + 1, "used last, kept"
    pair.plan(prompt[:41])
    assert len(scorings) == MEMO_SIZE + 2


def test_a_shared_object_remembers_between_generations(built_in, draft, scorings):
    shared = SpecPrefill(built_in, draft, replace(SPARSE, tail=32))
    first, again = (vkprefill.generate(built_in, PROMPTS[0]["user"], draft=shared, sampling=GREEDY) for _ in range(2))
    shared.close()
    assert len(scorings) == 1 and again.specprefill.score_ms == 0 < first.specprefill.score_ms
    assert again.token_ids == first.token_ids and again.specprefill.kept_ranges == first.specprefill.kept_ranges


def test_a_draft_given_as_a_model_records_once(built_in, monkeypatch, scorings):
    """What is kept with the draft changes no answer, and goes with the draft."""
    recorded = []
    for name in ("record_trunk", "record_rows"):
        record = getattr(ForwardPass, name)
        monkeypatch.setattr(ForwardPass, name, lambda *a, by=record, **o: (recorded.append(a[1]), by(*a, **o))[1])
    vkprefill.generate(built_in, "x", max_tokens=1)
    before, pages = built_in.device.allocated.copy(), len(built_in.runner.pool.free_pages)
    path, config = BUILT_IN.with_name("draft.gguf"), replace(SPARSE, tail=32)
    with vkprefill.load(path, device=built_in.device, max_context=2048) as draft:
        recorded.clear()
        loaded = built_in.device.allocated.copy()

        def answer(sample: dict) -> vkprefill.GenerationResult:
            return vkprefill.generate(built_in, sample["user"], draft=draft, spec=config, sampling=GREEDY)

        first = answer(PROMPTS[0])
        assert sorted(recorded) == ["lookahead", "score"]
        kept = built_in.device.allocated.copy()
        assert 0 < kept["scoring"] <= score_programs.KEPT_BYTES
        again, other = answer(PROMPTS[0]), answer({"user": PROMPTS[0]["user"] + " Say it twice."})
        assert len(recorded) == 2, "nothing is recorded anew"
        assert again.token_ids == first.token_ids and again.specprefill.kept_ranges == first.specprefill.kept_ranges
        assert len(scorings) == 3, "but each call scores its prompt"
        assert built_in.device.allocated == kept and len(draft.runner.pool.free_pages) == 2048 // 256
        assert {kind for kind in kept if kept[kind] != loaded[kind]} == {"scoring"}
    with vkprefill.load(path, device=built_in.device, max_context=2048) as draft:
        fresh = answer({"user": PROMPTS[0]["user"] + " Say it twice."})
        assert fresh.token_ids == other.token_ids and fresh.specprefill.kept_ranges == other.specprefill.kept_ranges
    assert built_in.device.allocated.total() == before.total()
    assert len(built_in.runner.pool.free_pages) == pages
