"""Speculative prefill without a draft: the target's own early layers score."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import vkprefill
from tests.model.sparse_requests import assert_split_logits
from tests.reference.fixtures import rms
from tests.reference.forward import ReferenceModel
from tests.reference.split import forward_split
from vkprefill import AttentionCapture, SamplingConfig, Session, SpecPrefill, SpecPrefillConfig
from vkprefill.explain.explanation import explain, summary
from vkprefill.generation.options import AnswerOptions
from vkprefill.server.engine.slots import Slots
from vkprefill.specprefill.plan import SparseRequest
from vkprefill.specprefill.selection import importance_from_rows
from vkprefill.specprefill.self_scorer import own_break_even, scoring_layer

SELF = SpecPrefillConfig(scorer="self", break_even=False)
FIFTH = SpecPrefillConfig(scorer="self", select_mode="chunk", keep_ratio=0.2, break_even=False)
GREEDY = SamplingConfig(temperature=0.0)
PROMPTS = [json.loads(line) for line in Path("tests/data/more_prompts.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def model(load_model):
    """Attention layers 1 and 3 of 4, with a multi-token-prediction block."""
    return load_model("mtp-b-q4km", kv_type="f32", max_context=2048)


@pytest.fixture
def alone(model):
    """What it took is given back."""
    model.logits([1])
    before = len(model.runner.pool.free_pages)
    made = SpecPrefill(model, None, FIFTH)
    yield made
    made.close()
    assert len(model.runner.pool.free_pages) == before


def test_importance_is_of_the_rows_of_the_last_queries(model, alone, prompt):
    """Against rows that a dense prefill captures, reduced on the host."""
    scored = alone.score(prompt)
    capture = AttentionCapture(layers=[1], queries=range(-32, 0))
    model.prefill(prompt, capture=capture)
    rows = capture.pattern[1]
    steps = [rows[None, :, j] for j in range(32)]
    want = importance_from_rows(steps, 300, FIFTH.pool_size)
    np.testing.assert_allclose(scored.importance, want, rtol=1e-4, atol=1e-7)
    assert scored.kept[-1] == 299 and 60 <= len(scored.kept) <= 110


@pytest.mark.parametrize("config", [FIFTH, SELF])
def test_prefill_is_that_of_the_split_model(model, prompt, config):
    spec = SpecPrefill(model, None, config)
    result = spec.prefill(prompt)
    report = result.report
    assert report.status == "active" and report.reason.startswith("layer 1 chose ")
    assert report.kept_n == len(result.kept) < 300 and result.cache.late_positions == result.kept.tolist()
    assert report.score_ms > 0 and report.sparse_prefill_ms > 0 and report.ttft_ms > report.score_ms
    assert report.settings["scorer"] == "self"
    assert_split_logits(result, model, prompt)
    result.cache.close()
    spec.close()


def test_all_kept_is_dense(model, prompt):
    """Chosen by a share of 1, and where a choice happens to keep all."""
    want = model.prefill(prompt)
    for config in (
        SpecPrefillConfig(scorer="self", keep_ratio=1.0),
        SpecPrefillConfig(scorer="self", cumulative_mass=1.0, max_keep=0, break_even=False),
    ):
        spec = SpecPrefill(model, None, config)
        result = spec.prefill(prompt)
        assert result.status == "kept_all" and result.cache.split is None
        np.testing.assert_array_equal(result.logits, want)
        result.cache.close()
        spec.close()


def test_answers_of_the_built_in_model(built_in):
    """Those prompts that it answers right densely, with a fifth of the tokens and by importance."""
    right = {"fifth": 0, "mass": 0}
    for p in [p for p in PROMPTS if len(p["messages"][-1]["content"]) > 1500][:6]:
        for name, config in (("fifth", FIFTH), ("mass", SELF)):
            got = vkprefill.generate(built_in, p["messages"], spec=config, max_tokens=12, sampling=GREEDY)
            assert got.specprefill.status == "active" and got.specprefill.kept_n < 0.9 * got.specprefill.prompt_n
            right[name] += got.text == p["answer"]
    assert right["mass"] == 6 and right["fifth"] >= 4, right


def test_who_scores(model, load_model, prompt):
    other = load_model("tiny-a-f32", kv_type="f32")
    with pytest.raises(vkprefill.RequestError, match="no full-attention layer before its last"):
        SpecPrefill(other, None, SELF)
    with pytest.raises(vkprefill.RequestError, match="scorer draft: there is no draft model"):
        SpecPrefill(model, None, SpecPrefillConfig(scorer="draft"))
    with pytest.raises(vkprefill.RequestError, match="score_layer: found 3, wanted one of 1"):
        SpecPrefill(model, None, SpecPrefillConfig(scorer="self", score_layer=3))
    spec = SpecPrefill(model, None)
    plan = spec.plan(prompt)
    assert (plan.report.status, plan.report.reason) == ("disabled", "no draft model in use")
    with pytest.raises(vkprefill.RequestError, match="no draft model in use; wanted one, or scorer self"):
        spec.score(prompt)
    assert spec.plan(prompt, config=FIFTH).report.status == "active"
    spec.close()
    result = vkprefill.generate(model, prompt, spec=SpecPrefillConfig(), max_tokens=1)
    assert result.specprefill.status == "disabled"


@pytest.mark.parametrize(
    ("layers", "attention", "wanted"),
    [(32, range(3, 32, 4), 11), (24, range(3, 24, 4), 7), (40, range(3, 40, 4), 15), (8, (3, 7), 3), (4, (1, 3), 1)],
)
def test_the_layer_that_scores(layers, attention, wanted):
    class Config:
        name, num_hidden_layers, attention_layers = "a model", layers, tuple(attention)

    assert scoring_layer(SELF, Config) == wanted


def test_break_even_counts_the_late_layers():
    class Config:
        name, num_hidden_layers, attention_layers = "a model", 32, tuple(range(3, 32, 4))

    found = own_break_even(10_000, 2_000, SELF, Config, 500.0)
    assert (found.scoring_s, found.saving_s) == (32 / 500, pytest.approx(8_000 * 20 / 32 / 500))
    assert found.worth and not own_break_even(40, 10, SELF, Config, 500.0).worth


def test_guards(model, prompt):
    config = SpecPrefillConfig(scorer="self", select_mode="chunk", keep_ratio=0.2, target_tokens_per_s=100.0)
    spec = SpecPrefill(model, None, config)
    report = spec.plan(prompt[:40]).report
    assert report.status == "skipped_break_even" and "scoring 40 tokens" in report.reason
    assert spec.plan(prompt).report.status == "active"
    assert spec.plan(prompt, config=SpecPrefillConfig(scorer="self", min_tokens=400)).report.status == (
        "skipped_min_tokens"
    )
    assert spec.plan(prompt, enabled=False).report.reason == "switched off"
    spec.close()


def test_explain_runs_on_a_cache_of_its_own(model, alone, prompt):
    found = explain(alone, prompt)
    assert found.report.status == "active" and found.draft == "layer 1 of the model itself"
    assert found.as_dict()["draft"] == found.draft
    assert summary(found).endswith("layers 0 to 1 of the model ran, on a cache of their own")
    assert "chunks of 32, queries of the last 32 tokens; scoring" in summary(found), "nothing is looked ahead for"
    np.testing.assert_array_equal(found.selection.kept, alone.score(prompt).kept)


def test_given_ranges_are_of_the_late_layers(model, alone, prompt):
    """The early layers read all."""
    result = alone.prefill(prompt, kept_ranges=[[0, 20], [100, 130]])
    kept = [*range(20), *range(100, 130), 299]
    assert result.report.kept_n == len(kept) and result.cache.late_positions == kept
    assert result.cache.positions == list(range(300))
    reference = ReferenceModel(model.path)
    want = forward_split(reference, prompt, range(300), kept, 1, reference.new_state())["result_output"][-1]
    assert np.abs(result.logits - want).max() <= 1e-4 * rms(want)
    result.cache.close()


def test_what_fails_leaves_nothing(model, alone, prompt, monkeypatch):
    """While the early layers read, between, and while the late ones run: the cache is as it was."""
    cache = model.new_cache()

    def boom(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        alone.prefill(prompt, cache, progress=boom)
    assert (len(cache), cache.split, cache.ahead, cache.broken) == (0, None, None, False)
    with monkeypatch.context() as patch:
        patch.setattr(model.runner, "head_logits", boom)
        with pytest.raises(KeyboardInterrupt):
            alone.prefill(prompt, cache)
    assert (len(cache), cache.split, cache.ahead, cache.broken) == (0, None, None, False)
    with monkeypatch.context() as patch:
        patch.setattr("vkprefill.specprefill.score_programs.ScorePrograms.total", lambda _: np.full(300, np.nan))
        result = alone.prefill(prompt, cache)
        assert result.status == "failed" and "importance by mtp-b" in result.report.reason
        np.testing.assert_array_equal(result.logits, model.prefill(prompt))
        cache.reset()
    with pytest.raises(vkprefill.ContextLengthError):
        alone.prefill(prompt * 7, cache)
    np.testing.assert_array_equal(alone.prefill(prompt, cache).logits, alone.prefill(prompt).logits)
    cache.close()


def long_question(number: int) -> dict[str, str]:
    facts = " ".join(f"Ann's cat number {i} is {'red blue green'.split()[i % 3]}." for i in range(24 + number))
    return {"role": "user", "content": f"{facts}\nWhich colour has cat number {number}?"}


def test_session_of_several_turns(built_in):
    """Each turn goes on from the one before; early layers hold all, later ones what was kept. As in fresh sessions."""
    messages, dense = [], Session(built_in)
    session, cached = Session(built_in, None, FIFTH), []
    for turn in range(3):
        messages.append(long_question(turn))
        result = session.generate(messages, max_tokens=6, sampling=GREEDY)
        report = result.specprefill
        cached.append(result.timings.cache_n)
        assert report.status == "active" and report.kept_n < (report.prompt_n - report.cached_n) * 0.6
        cache = session.cache
        assert cache.split == 3 and len(cache.late_positions) < len(cache) and cache.ahead is None
        assert cache.positions == list(range(len(cache)))
        messages.append({"role": "assistant", "content": result.text})
    assert cached[0] == 0 and 0 < cached[1] < cached[2]
    exact = session.generate([*messages, long_question(9)], max_tokens=4, sampling=GREEDY, specprefill=False)
    want = dense.generate([*messages, long_question(9)], max_tokens=4, sampling=GREEDY)
    assert exact.text == want.text and exact.timings.cache_n == 0
    session.close()
    dense.close()


def test_a_session_without_a_draft_takes_a_turn_that_asks(built_in):
    session = Session(built_in)
    first = session.generate([long_question(1)], max_tokens=4, sampling=GREEDY)
    assert first.specprefill.status == "disabled"
    more = [long_question(1), {"role": "assistant", "content": first.text}, long_question(2)]
    second = session.generate(more, max_tokens=4, sampling=GREEDY, spec=FIFTH)
    assert second.specprefill.status == "active" and second.timings.cache_n > 0
    assert session.cache.split == 3 and len(session.cache.late_positions) < len(session.cache)
    session.close()


def test_conversations_of_a_server(load_model):
    """Four that share a memory of two: each answer is that of a run alone, also after another one had to make room, and
    a further turn goes on from the one before it. A server without a scorer takes a request that names one.
    """
    small = load_model("built-in", max_context=1536)
    prompts = [small.tokenizer.encode(f"{name}. " + "The river was quiet. " * 200)[:600] for name in "ABCD"]
    asked = AnswerOptions(3, GREEDY, SparseRequest(config=FIFTH), mark_at=(590,))
    want = [vkprefill.generate(small, ids, spec=FIFTH, max_tokens=3, sampling=GREEDY).token_ids for ids in prompts]
    for spec in (FIFTH, None):
        slots = Slots(small, None, spec)
        for turn, cached in ((0, 0), (1, 0), (2, 0), (3, 0), (3, 500), (0, 0)):
            session = slots.choose(prompts[turn], asked)
            parts = list(session.stream_ids(prompts[turn], asked))
            assert parts[-1].timings.cache_n >= cached and (cached or not parts[-1].timings.cache_n)
            if not cached:  # else the choice is among what is new
                assert [p.token_id for p in parts if p.token_id is not None] == want[turn], turn
                assert parts[-1].specprefill.status == "active"
        assert slots.figures()["evictions"] >= 2
        more = prompts[0] + want[0] + small.tokenizer.encode(" And then? " + "It rained. " * 30)
        session = slots.choose(more, asked)
        parts = list(session.stream_ids(more, asked))
        assert parts[-1].timings.cache_n >= 600 and parts[-1].specprefill.cached_n >= 600
        assert session.cache.split == 3 and session.cache.positions == list(range(len(session.cache)))
        slots.close()


def test_checked_answers(built_in):
    """Whatever was kept, the answer is the dense one; a session goes on from the dense cache."""
    config = replace(FIFTH, keep_ratio=0.05, protect_question=False, check="wait")
    session, dense = Session(built_in, None, config), Session(built_in)
    messages, found = [], []
    for turn in range(2):
        messages.append(long_question(turn))
        got, want = (s.generate(messages, max_tokens=8, sampling=GREEDY) for s in (session, dense))
        assert got.text == want.text and got.specprefill.status == "active"
        found.append(got.specprefill.check["status"])
        assert session.cache.split is None
        messages.append({"role": "assistant", "content": want.text})
    assert set(found) <= {"equal", "revised"}
    session.close()
    dense.close()
