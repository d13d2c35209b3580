"""Speculative prefill from request to answer: the status of each request, and what the answers say."""

import json
from dataclasses import replace

import numpy as np
import pytest

import vkprefill
from tests.model.sparse_requests import GREEDY, PROMPTS, SPARSE, check_report, dense
from vkprefill import SpecPrefill, SpecPrefillConfig
from vkprefill.specprefill import guards
from vkprefill.specprefill.plan import RequestFacts

SLOW_DRAFT = {"draft_tokens_per_s": 1.0, "target_tokens_per_s": 1e6}
CASES = {  # settings, options of plan, words of the reason
    "disabled": ({}, {"enabled": False}, "switched off"),
    "skipped_tool_guard": ({}, {"facts": RequestFacts(tools=[{"name": "x"}])}, "the request has tools"),
    "skipped_min_tokens": ({"min_tokens": 301}, {}, "300 new tokens, below min_tokens 301"),
    "skipped_break_even": ({"break_even": True, **SLOW_DRAFT}, {}, "scoring 300 tokens would take about 3"),
    "kept_all": ({"keep_ratio": 1.0}, {}, "all of the 300 new tokens were kept"),
    "active": ({}, {}, "the draft chose"),
    "failed": ({"score_layers": (0,)}, {}, "the scorer failed: score_layers: 0 has no attention rows"),
}


@pytest.mark.parametrize("status", guards.STATUSES)
def test_every_status(pair, prompt, status):
    settings, options, reason = CASES[status]
    config = replace(SPARSE, **settings)
    out = pair.prefill(prompt, config=config, **options)
    check_report(out.report, status, 300, config)
    assert out.status == status and out.report.reason.startswith(reason)
    assert (out.report.score_ms > 0) == (out.importance is not None) == (status in (guards.ACTIVE, guards.KEPT_ALL))
    assert out.cache.next_position == 300 and len(out.cache) == len(out.kept) == out.report.kept_n
    if status != guards.ACTIVE:
        assert np.array_equal(out.logits, dense(pair.target, prompt)), "bit for bit"
    if out.importance is not None:
        assert out.importance.shape == (300,) and out.importance.dtype == np.float32
    out.cache.close()


def test_order_of_the_guards(pair, prompt):
    """The first that applies decides; later ones are not even asked."""
    settings = {"min_tokens": 301, "break_even": True, "score_layers": (0,), **SLOW_DRAFT}
    order = [
        ({}, {"enabled": False, "facts": RequestFacts(roles=("tool",))}),
        ({}, {"facts": RequestFacts(roles=("user", "tool"))}),
        ({"tool_guard": False}, {"facts": RequestFacts(grammar="root ::= x")}),
        ({"min_tokens": 300}, {}),
        ({"min_tokens": 300, "break_even": False}, {}),
    ]
    found = [pair.plan(prompt, config=replace(SPARSE, **{**settings, **s}), **o).report.status for s, o in order]
    assert found == ["disabled", "skipped_tool_guard", "skipped_min_tokens", "skipped_break_even", "failed"]


def test_tool_words_in_the_first_tokens(pair):
    encode = pair.target.tokenizer.encode
    filler = encode("some words " * 40)
    early, late = [*encode("the get_time call"), *filler], [*filler, *encode("the get_time call"), *filler]
    within = [*encode("the target_time call"), *filler]
    config = replace(SPARSE, min_tokens=10_000)
    assert pair.plan(early).report.reason == "the first 256 tokens hold get_"
    assert len(filler) > 256 and pair.plan(late, config=config).report.status == guards.SKIPPED_MIN_TOKENS
    assert pair.plan(early, config=replace(config, tool_guard=False)).report.status == guards.SKIPPED_MIN_TOKENS
    assert pair.plan(within, config=config).report.status == guards.SKIPPED_MIN_TOKENS
    anywhere = replace(config, tool_match="substrings")
    assert pair.plan(within, config=anywhere).report.reason == "the first 256 tokens hold get_"


def test_min_tokens_counts_new_tokens(pair, prompt):
    config = replace(SPARSE, min_tokens=200)
    assert pair.plan(prompt, config=config, cached_n=100).report.status == guards.ACTIVE
    plan = pair.plan(prompt, config=config, cached_n=101)
    assert plan.report.status == guards.SKIPPED_MIN_TOKENS
    assert plan.kept.tolist() == list(range(101, 300)) and plan.report.kept_ranges == [[101, 300]]


@pytest.mark.parametrize("status", guards.STATUSES)
def test_every_status_in_generate(built_in, draft, status, monkeypatch):
    """The same object in the result of generate and in every part of stream_generate; disabled: no draft at all."""
    prompt = {"skipped_tool_guard": "get_ " + PROMPTS[0]["user"]}.get(status, PROMPTS[0]["user"])
    settings, _, reason = CASES[status]
    config = replace(SPARSE, tail=32, **{**settings, **({"min_tokens": 4096} if "min_tokens" in settings else {})})
    options = {"draft": None if status == guards.DISABLED else draft, "spec": config, "sampling": GREEDY}
    result = vkprefill.generate(built_in, prompt, **options)
    num_tokens = len(built_in.chat_template.encode([{"role": "user", "content": prompt}]))
    check_report(result.specprefill, status, num_tokens, None if status == guards.DISABLED else config)
    assert result.timings.specprefill == status and result.timings.prompt_n == result.specprefill.kept_n
    assert json.loads(json.dumps(result.as_dict()))["specprefill"]["status"] == status
    parts = list(vkprefill.stream_generate(built_in, prompt, **options))
    assert all(part.specprefill.status == part.timings.specprefill == status for part in parts)
    assert "".join(part.text for part in parts) == result.text
    if status != guards.ACTIVE:
        assert result.token_ids == vkprefill.generate(built_in, prompt, sampling=GREEDY).token_ids
    assert result.text == PROMPTS[0]["answer"]


def test_tool_role_in_generate(built_in, draft):
    messages = [{"role": "user", "content": PROMPTS[0]["user"]}, {"role": "tool", "content": "12"}]
    result = vkprefill.generate(built_in, messages, draft=draft, spec=SPARSE, max_tokens=1)
    assert result.specprefill.reason == "a message has the role tool"


def test_built_in_pair_answers_at_a_fifth(built_in, draft):
    config = SpecPrefillConfig(select_mode="chunk", keep_ratio=0.2, tail=32, break_even=False)
    shared = SpecPrefill(built_in, draft, config)
    right = []
    for sample in PROMPTS[:8]:
        result = vkprefill.generate(built_in, sample["user"], draft=shared, sampling=GREEDY)
        assert result.specprefill.status == guards.ACTIVE
        assert result.specprefill.kept_n < 0.3 * sample["n_tokens"]
        right.append(result.text == sample["answer"])
    shared.close()
    assert sum(right) >= 7, right


def test_chunks_that_follow_lines(built_in, draft):
    ids = built_in.chat_template.encode([{"role": "user", "content": PROMPTS[0]["user"]}])
    shared = SpecPrefill(built_in, draft, replace(SPARSE, chunk_align="lines"))
    bounds = shared.score(ids).selection.chunk_bounds
    shared.close()
    texts = [built_in.tokenizer.token_bytes(t) for t in ids]
    assert any(texts[b - 1].endswith(b"\n") for b in bounds[1:-1])
    assert not set(bounds[1:-1].tolist()) <= set(range(0, len(ids), 32))
