"""Speculative prefill from request to answer: statuses, exactness, memo, break-even, failures."""

import json
import logging
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import vkprefill
from tests.model.conftest import BUILT_IN
from tests.reference.fixtures import LOGITS, model_path, rms
from tests.reference.forward import ReferenceModel
from vkprefill import SamplingConfig, SpecPrefill, SpecPrefillConfig
from vkprefill.engine.forward import ForwardPass
from vkprefill.engine.speed_meter import SpeedMeter
from vkprefill.specprefill import calibration, guards, score_programs
from vkprefill.specprefill.pipeline import MEMO_SIZE
from vkprefill.specprefill.plan import RequestFacts, SparseRequest, SpecPrefillReport
from vkprefill.specprefill.scorer import Scorer, score_kind

GREEDY = SamplingConfig(temperature=0.0)
PROMPTS = [json.loads(line) for line in (Path(__file__).parent.parent / "data" / "demo_prompts.jsonl").open()]
SPARSE = SpecPrefillConfig(break_even=False, lookahead=2, select_mode="chunk", keep_ratio=0.3)
FIELDS = [
    "status",
    "reason",
    "prompt_n",
    "cached_n",
    "cached_ranges",
    "kept_n",
    "kept_ranges",
    "settings",
    "score_ms",
    "lookahead_ms",
] + ["select_ms", "sparse_prefill_ms", "ttft_ms", "dense_estimate_ms"]


@pytest.fixture(scope="module")
def built_in_draft():
    with vkprefill.load(BUILT_IN.with_name("draft.gguf"), max_context=4096) as model:
        yield model


@pytest.fixture(scope="module")
def tiny_draft(load_model):
    return load_model("tiny-a-f32", kv_type="f32")


@pytest.fixture
def pair(tiny, tiny_draft):
    """Random models; what it took is given back."""
    tiny_draft.logits([1])
    before = [(m.device.allocated.total(), len(m.runner.pool.free_pages)) for m in (tiny, tiny_draft)]
    made = SpecPrefill(tiny, tiny_draft, SPARSE)
    yield made
    made.close()
    assert [(m.device.allocated.total(), len(m.runner.pool.free_pages)) for m in (tiny, tiny_draft)] == before


def dense(model, token_ids) -> np.ndarray:
    return model.prefill(token_ids)


def check_report(report: SpecPrefillReport, status: str, num_tokens: int, config: SpecPrefillConfig | None) -> None:
    """All fields of a result are there and fit together."""
    found = json.loads(json.dumps(report.as_dict()))
    assert sorted(found) == sorted(FIELDS)
    assert found["status"] == status and status in guards.STATUSES
    assert found["prompt_n"] == num_tokens and len(found["reason"]) > 5
    assert found["kept_n"] == sum(end - start for start, end in found["kept_ranges"])
    ends = [n for pair in found["kept_ranges"] for n in pair]
    assert ends == sorted(set(ends)) and ends[-1] == num_tokens and ends[0] >= found["cached_n"]
    if config is None:
        assert found["settings"] == {}
    else:
        assert SpecPrefillConfig.from_dict(found["settings"]) == config
    new = num_tokens - found["cached_n"]
    assert (found["kept_n"] < new) == (status == guards.ACTIVE)
    parts = [found[name] for name in ("score_ms", "lookahead_ms", "select_ms", "sparse_prefill_ms")]
    assert min(parts) >= 0 and parts[3] > 0 and found["ttft_ms"] >= sum(parts)
    assert found["dense_estimate_ms"] is None or found["dense_estimate_ms"] > 0


# -- statuses ----------------------------------------------------------------------------------------------------------

FAST_DRAFT = {"draft_tokens_per_s": 1e9, "target_tokens_per_s": 1e-3}
SLOW_DRAFT = {"draft_tokens_per_s": 1.0, "target_tokens_per_s": 1e6}
CASES = {  # settings, options of plan, words of the reason
    "disabled": ({}, {"enabled": False}, "switched off"),
    "skipped_tool_guard": ({}, {"facts": RequestFacts(tools=[{"name": "x"}])}, "the request has tools"),
    "skipped_min_tokens": ({"min_tokens": 301}, {}, "300 new tokens, below min_tokens 301"),
    "skipped_break_even": ({"break_even": True, **SLOW_DRAFT}, {}, "scoring 300 tokens would take about 3"),
    "kept_all": ({"keep_ratio": 1.0}, {}, "all of the 300 new tokens were kept"),
    "active": ({}, {}, "the draft chose"),
    "failed": ({"score_layers": (0,)}, {}, "the scorer failed: layers: 0 has no attention rows"),
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
def test_every_status_in_generate(built_in, built_in_draft, status, monkeypatch):
    """The same object in the result of generate and in every part of stream_generate; disabled: no draft at all."""
    prompt = {"skipped_tool_guard": "get_ " + PROMPTS[0]["user"]}.get(status, PROMPTS[0]["user"])
    settings, _, reason = CASES[status]
    config = replace(SPARSE, tail=32, **{**settings, **({"min_tokens": 4096} if "min_tokens" in settings else {})})
    options = {"draft": None if status == guards.DISABLED else built_in_draft, "spec": config, "sampling": GREEDY}
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


def test_tool_role_in_generate(built_in, built_in_draft):
    messages = [{"role": "user", "content": PROMPTS[0]["user"]}, {"role": "tool", "content": "12"}]
    result = vkprefill.generate(built_in, messages, draft=built_in_draft, spec=SPARSE, max_tokens=1)
    assert result.specprefill.reason == "a message has the role tool"


# -- exactness ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings", [{"keep_ratio": 1.0}, {"protect": ((0, 300),)}, {"tail": 300}, {"chunk_size": 300}]
)
@pytest.mark.parametrize("mode", ["mass", "chunk"])
def test_all_kept_is_dense_bit_for_bit(pair, prompt, settings, mode):
    out = pair.prefill(prompt, config=replace(SPARSE, select_mode=mode, **settings))
    assert out.status == guards.KEPT_ALL and out.report.kept_ranges == [[0, 300]]
    assert np.array_equal(out.logits, dense(pair.target, prompt))
    own = pair.target.new_cache()
    pair.target.prefill(prompt, cache=own)
    for token in (5, 6):
        assert np.array_equal(pair.target.decode(token, out.cache), pair.target.decode(token, own))
    own.close()
    out.cache.close()


@pytest.mark.parametrize(
    "settings", [{}, {"chunk_size": 7, "keep_ratio": 0.5}, {"select_mode": "mass", "cumulative_mass": 0.4}]
)
def test_sparse_prefill_is_a_prefill_of_the_kept_tokens(pair, prompt, settings):
    """Bit for bit that of the model, and within the limit that of the float64 reference; decode is at T."""
    out = pair.prefill(prompt, config=replace(SPARSE, **settings))
    kept, ids = out.kept.tolist(), np.asarray(prompt)[out.kept]
    assert out.status == guards.ACTIVE and 10 < len(kept) < 290 and len(out.report.kept_ranges) > 2
    assert kept[:4] == [0, 1, 2, 3] and kept[-2:] == [298, 299]
    own = pair.target.new_cache()
    assert np.array_equal(out.logits, pair.target.prefill(ids, kept, own))
    own.close()

    reference = ReferenceModel(model_path("tiny-c-q4km"))
    state = reference.new_state()
    want = reference.forward(ids, kept, state)["result_output"][-1]
    assert np.abs(out.logits - want).max() <= LOGITS * rms(want)
    assert out.cache.positions == kept and out.cache.next_position == 300
    for position, token in ((300, 7), (301, 11)):
        got = pair.target.decode(token, out.cache)
        want = reference.forward([token], [position], state)["result_output"][-1]
        assert np.abs(got - want).max() <= LOGITS * rms(want)
    assert out.cache.positions[-2:] == [300, 301]
    out.cache.close()


def test_a_callers_cache(pair, prompt):
    cache = pair.target.new_cache()
    out = pair.prefill(prompt, cache)
    assert out.cache is cache and len(cache) == out.report.kept_n
    with pytest.raises(vkprefill.RequestError, match=rf"cache: holds {len(cache)} tokens, wanted an empty one"):
        pair.prefill(prompt, cache)
    cache.close()


@pytest.mark.parametrize("options", [{"cached_n": 5}, {"mark_at": 5}, {"keep_ratio": 0.5}])
def test_options_that_would_do_nothing(pair, prompt, options):
    """A whole prompt goes into an empty cache: there is nothing of it yet."""
    pages = len(pair.target.runner.pool.free_pages)
    with pytest.raises(vkprefill.RequestError, match=rf"found option {next(iter(options))}, wanted some of enabled"):
        pair.prefill(prompt, **options)
    assert len(pair.target.runner.pool.free_pages) == pages


def test_fields_beside_a_request_are_not_lost(pair, prompt):
    asked = SparseRequest(kept_ranges=[[0, 10]])
    assert pair.plan(prompt, asked, enabled=False).report.status == guards.DISABLED
    assert pair.plan(prompt, asked, kept_ranges=[[0, 20]]).report.kept_ranges == [[0, 20], [299, 300]]


@pytest.mark.parametrize("spoilt", [True, False, np.True_])
def test_true_is_no_token_id(pair, prompt, spoilt):
    """Not in a guard's way, nor before kept ranges, nor in an array of integers that it would vanish in."""
    prompt = [*prompt[:20], spoilt, *prompt[21:]]
    for call in (
        lambda: pair.score(prompt),
        lambda: pair.plan(prompt),
        lambda: pair.plan(prompt, enabled=False),
        lambda: pair.plan(prompt, kept_ranges=[[0, 10]]),
        lambda: pair.prefill(prompt, kept_ranges=[[0, 10]]),
        lambda: vkprefill.generate(pair.target, prompt, draft=pair, kept_ranges=[[0, 10]]),
    ):
        with pytest.raises(vkprefill.RequestError, match="(token_ids|prompt): "):
            call()


def test_token_ids_of_numpy(pair, prompt):
    want = pair.plan(prompt).kept.tolist()
    for dtype in (np.int32, np.int64, np.uint16):
        assert pair.plan(np.array(prompt, dtype)).kept.tolist() == want
    scored = pair.score(np.array(prompt, np.int32))
    assert pair.plan(prompt, kept_ranges=[list(map(np.int32, r)) for r in scored.kept_ranges]).kept.tolist() == want


@pytest.mark.parametrize("first", [-1, 300, True])
def test_bad_first(pair, prompt, first):
    with pytest.raises(vkprefill.RequestError, match="first: found .*, wanted 0 to 299"):
        pair.score(prompt, first=first)


@pytest.mark.parametrize("cached_n", [-1, 300, 301, True, 1.0, None])
def test_bad_cached_n(pair, prompt, cached_n):
    with pytest.raises(vkprefill.RequestError, match="cached_n: found .*, wanted 0 to 299"):
        pair.plan(prompt, cached_n=cached_n)
    assert pair.plan(prompt, cached_n=299).kept.tolist() == [299]


def test_dry_run(pair, prompt):
    """score does no work of the target, and chooses what prefill chooses."""
    pages = len(pair.target.runner.pool.free_pages)
    scored = pair.score(prompt)
    assert len(pair.target.runner.pool.free_pages) == pages
    assert scored.importance.shape == (300,) and scored.chunk_scores.shape == (10,)
    assert scored.kept.dtype == np.int32 and (np.diff(scored.kept) > 0).all()
    out = pair.prefill(prompt)
    assert out.kept.tolist() == scored.kept.tolist()
    assert out.report.kept_ranges == [list(r) for r in scored.kept_ranges]
    out.cache.close()


# -- kept ranges -------------------------------------------------------------------------------------------------------


def test_kept_ranges_out_and_in(pair, prompt):
    first = pair.prefill(prompt)
    again = pair.prefill(prompt, kept_ranges=first.report.kept_ranges)
    assert again.status == guards.ACTIVE and again.report.kept_ranges == first.report.kept_ranges
    assert again.report.score_ms == 0 and again.importance is None
    assert np.array_equal(again.logits, first.logits)
    check_report(again.report, guards.ACTIVE, 300, SPARSE)
    ranges = tuple((start, end) for start, end in first.report.kept_ranges)
    assert pair.plan(prompt, kept_ranges=ranges).kept.tolist() == first.kept.tolist()
    first.cache.close()
    again.cache.close()


@pytest.mark.parametrize(
    ("ranges", "kept"),
    [([], [299]), ([[0, 3]], [0, 1, 2, 299]), ([[2, 3], [3, 5]], [2, 3, 4, 299]), ([[298, 300]], [298, 299])],
)
def test_the_last_token_is_always_run(pair, prompt, ranges, kept):
    plan = pair.plan(prompt, kept_ranges=ranges)
    assert plan.kept.tolist() == kept and plan.sparse
    assert plan.report.kept_ranges == [[0, 3], [299, 300]] if ranges == [[0, 3]] else plan.report.kept_ranges


def test_ranges_of_all_and_of_cached_tokens(pair, prompt):
    out = pair.prefill(prompt, kept_ranges=[[0, 300]])
    assert out.status == guards.KEPT_ALL and np.array_equal(out.logits, dense(pair.target, prompt))
    out.cache.close()
    plan = pair.plan(prompt, kept_ranges=[[0, 110], [290, 299]], cached_n=100)
    assert plan.kept.tolist() == [*range(100, 110), *range(290, 300)]
    assert pair.plan(prompt, kept_ranges=[[0, 5]], enabled=False).report.status == guards.DISABLED


BAD_RANGES = [
    [[5, 5]], [[5, 4]], [[-1, 4]], [[0, 301]], [[0, 10], [9, 20]], [[20, 30], [0, 10]], [[0]], [[0, 1, 2]], [0, 5],
    [["0", "5"]], [[0.0, 5.0]], [[False, True]], [None], "ab", 5, {"a": 1}, [[0, None]],
]  # fmt: skip


@pytest.mark.parametrize("ranges", BAD_RANGES)
def test_bad_kept_ranges(pair, prompt, ranges):
    with pytest.raises(vkprefill.RequestError, match="kept_ranges: found"):
        pair.plan(prompt, kept_ranges=ranges)


# -- memo --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def scorings(monkeypatch) -> list[int]:
    """Lengths of the prompts that a draft really scored."""
    calls, score = [], Scorer.score

    def counted(self, token_ids, *args, **options):
        calls.append(len(token_ids))
        return score(self, token_ids, *args, **options)

    monkeypatch.setattr(Scorer, "score", counted)
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


def test_a_shared_object_remembers_between_generations(built_in, built_in_draft, scorings):
    shared = SpecPrefill(built_in, built_in_draft, replace(SPARSE, tail=32))
    first, again = (vkprefill.generate(built_in, PROMPTS[0]["user"], draft=shared, sampling=GREEDY) for _ in range(2))
    shared.close()
    assert len(scorings) == 1 and again.specprefill.score_ms == 0 < first.specprefill.score_ms
    assert again.token_ids == first.token_ids and again.specprefill.kept_ranges == first.specprefill.kept_ranges


def test_a_draft_given_as_a_model_records_once(built_in, monkeypatch, scorings):
    """What is kept with the draft changes no answer, and goes with the draft."""
    recorded, record = [], ForwardPass.record_trunk
    monkeypatch.setattr(ForwardPass, "record_trunk", lambda *a, **o: (recorded.append(a[1]), record(*a, **o))[1])
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


# -- break-even --------------------------------------------------------------------------------------------------------

CAREFUL = replace(SPARSE, break_even=True)


@pytest.fixture
def meters(pair, monkeypatch):
    """Models that have not run yet, as far as their meters know, and whose real speed stays unknown."""
    for method in ("prefilled", "decoded"):
        monkeypatch.setattr(SpeedMeter, method, lambda *_: None)
    for model in (pair.target, pair.draft):
        monkeypatch.setattr(model.runner, "meter", SpeedMeter(64))
    return pair.target.runner.meter, pair.draft.runner.meter


@pytest.fixture
def cache_home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def no_measuring(monkeypatch):
    def refuse(model):
        raise AssertionError(f"{model.path.name} measured")

    monkeypatch.setattr(calibration, "_measure", refuse)


def test_measured_speeds_decide(pair, prompt, meters, cache_home, no_measuring):
    target, draft = meters
    target.prefill_per_s, target.decode_per_s, draft.decode_per_s = 100.0, 5.0, 1000.0
    for draft_speed, status in ((1e5, guards.ACTIVE), (165.0, guards.SKIPPED_BREAK_EVEN), (180.0, guards.ACTIVE)):
        draft.prefill_per_s = draft_speed  # saving 0.7 x 3 s against 300 / speed x 1.2
        pair._shares = guards.KeptShares()
        plan = pair.plan(prompt, config=CAREFUL)
        assert plan.report.status == status
        assert plan.report.dense_estimate_ms == pytest.approx(3000)
    draft.prefill_per_s, draft.decode_per_s = 1e5, 1.0
    pair._shares = guards.KeptShares()
    plan = pair.plan(prompt, config=CAREFUL)
    assert plan.report.reason == "scoring 300 tokens would take about 2003 ms and save 2100 ms"


def test_settings_beat_measured_speeds(pair, prompt, meters, cache_home, no_measuring):
    for meter in meters:
        meter.prefill_per_s = meter.decode_per_s = 100.0
    assert pair.plan(prompt, config=CAREFUL).report.status == guards.SKIPPED_BREAK_EVEN
    plan = pair.plan(prompt, config=replace(CAREFUL, draft_tokens_per_s=1e6))
    assert plan.report.status == guards.ACTIVE and plan.report.dense_estimate_ms == pytest.approx(3000)
    pair._shares = guards.KeptShares()
    plan = pair.plan(prompt, config=replace(CAREFUL, target_tokens_per_s=1.0))
    assert plan.report.status == guards.ACTIVE and plan.report.dense_estimate_ms == pytest.approx(300_000)
    careful = replace(CAREFUL, target_tokens_per_s=1.0, break_even_safety=1000)
    assert pair.plan(prompt, config=careful).report.status == guards.SKIPPED_BREAK_EVEN


@pytest.mark.parametrize(("settings", "counts"), [({}, True), ({"tail_queries": 1}, False), ({"lookahead": 0}, False)])
def test_only_lookahead_that_happens_is_counted(pair, prompt, meters, cache_home, no_measuring, settings, counts):
    target, draft = meters
    target.prefill_per_s, target.decode_per_s, draft.prefill_per_s, draft.decode_per_s = 1e3, 1.0, 1e9, 1e-3
    status = pair.plan(prompt, config=replace(CAREFUL, **settings)).report.status
    assert status == (guards.SKIPPED_BREAK_EVEN if counts else guards.ACTIVE)


def test_kinds_of_scoring_have_speeds_of_their_own(pair, prompt, meters, cache_home, no_measuring):
    """A slow kind, which another request had, does not keep the usual one from being worth it; and the other way."""
    for meter in meters:
        meter.prefill_per_s = meter.decode_per_s = 1000.0
    usual, other = replace(CAREFUL, target_tokens_per_s=20), replace(CAREFUL, target_tokens_per_s=20, pool_size=101)
    slow = meters[1].of(score_kind(other, pair.draft))
    slow.prefill_per_s = 1.0
    assert pair.plan(prompt, config=other).report.status == guards.SKIPPED_BREAK_EVEN
    assert pair.plan(prompt, config=usual).report.status == guards.ACTIVE
    slow.prefill_per_s, meters[1].of(score_kind(usual, pair.draft)).prefill_per_s = 1000.0, 1.0
    assert pair.plan(prompt, config=other).report.status == guards.ACTIVE
    assert pair.plan(prompt[:-1], config=usual).report.status == guards.SKIPPED_BREAK_EVEN


def test_a_draft_that_stops_early_is_expected_to_be_faster(pair, meters, cache_home, no_measuring):
    for meter in meters:
        meter.prefill_per_s = meter.decode_per_s = 1000.0
    layer, layers = pair.draft.config.attention_layers[0], pair.draft.config.num_hidden_layers
    early = pair._speeds(replace(CAREFUL, score_layers=(layer,), tail_queries=4))
    assert early.draft_tokens_per_s == pytest.approx(1000 * layers / (layer + 1))
    assert pair._speeds(CAREFUL).draft_tokens_per_s == 1000


def test_earlier_selections_are_expected_again(pair, prompt, meters, cache_home, no_measuring):
    """Nothing was saved so far: not worth it, whatever keep_ratio promises."""
    for meter in meters:
        meter.prefill_per_s = meter.decode_per_s = 1000.0
    config = replace(CAREFUL, draft_tokens_per_s=1e9, keep_ratio=0.05, target_tokens_per_s=20, protect=((0, 300),))
    assert pair.plan(prompt, config=config).report.status == guards.KEPT_ALL
    assert pair.plan(prompt, config=config).report.status == guards.SKIPPED_BREAK_EVEN


def test_what_others_kept_is_not_expected(pair, prompt, meters, cache_home, no_measuring):
    """A request's decision is the same whatever settings the requests before it had."""
    for meter in meters:
        meter.prefill_per_s = meter.decode_per_s = 1000.0
    config = replace(CAREFUL, draft_tokens_per_s=1e9, keep_ratio=0.05, target_tokens_per_s=20)
    for other in ({"protect": ((0, 300),)}, {"keep_ratio": 0.95}, {"tail": 300}):
        for _ in range(9):
            pair.plan(prompt, config=replace(SPARSE, **other))
        assert pair.plan(prompt, config=config).report.status == guards.ACTIVE
    for _ in range(9):
        pair.plan(prompt, config=replace(config, break_even=False), fixed_n=298)
    assert pair.plan(prompt, config=config).report.status == guards.ACTIVE


def test_calibration_is_measured_once_and_stored(pair, prompt, meters, cache_home, monkeypatch):
    """By device, driver, file and KV type; a second process finds it."""
    pair.plan(prompt, config=CAREFUL)
    path = cache_home / "vkprefill" / "calibration.json"
    stored = json.loads(path.read_text())
    assert len(stored) == 2 and [p.name for p in path.parent.iterdir()] == [path.name]
    for model in (pair.target, pair.draft):
        (key,) = [key for key in stored if model.path.name in key]
        for part in (model.device.info.name, model.device.info.driver, str(model.path.stat().st_size), model.kv_type):
            assert part in key
        assert key.endswith(f"|{model.prefill_chunk} tokens"), "measured at the step that runs"
        assert 0 < stored[key]["prefill"] < 1e9 and 0 < stored[key]["decode"] < 1e9

    measured = []
    monkeypatch.setattr(calibration, "_measure", lambda model: measured.append(model) or calibration.Speed(10.0, 10.0))
    for model in (pair.target, pair.draft):
        monkeypatch.setattr(model.runner, "meter", SpeedMeter(64))
        assert calibration.speed_of(model).prefill == stored[calibration._key(model)]["prefill"]
    assert not measured
    changed = replace(pair.draft.device.info, driver="another driver")
    monkeypatch.setattr(pair.draft.device, "info", changed)
    assert calibration.speed_of(pair.draft).prefill == 10.0 and measured == [pair.draft]
    assert len(json.loads(path.read_text())) == 3


DAMAGED = [
    b"", b"{", b"[]", b"7", b"\xff\xfe", b'{"x": 1}', b'{"x": {"prefill": 1}}', b'{"x": {"prefill": "y", "decode": 1}}',
    b'{"KEY": {"prefill": 0, "decode": 0}}', b'{"KEY": {"prefill": NaN, "decode": 1}}',
    b'{"KEY": {"prefill": -1, "decode": 1}}',
    b'{"KEY": {"prefill": Infinity, "decode": 1}}', b'{"KEY": {"prefill": 1, "decode": 1e999}}', b"[" * 100_000,
    b'{"KEY": {"prefill": 1' + b"0" * 400 + b', "decode": 1}}',
]  # fmt: skip


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_calibration(pair, meters, cache_home, monkeypatch, caplog, content):
    """One warning, measured again, and a good file afterwards."""
    path = cache_home / "vkprefill" / "calibration.json"
    path.parent.mkdir()
    path.write_bytes(content.replace(b"KEY", calibration._key(pair.draft).encode()))
    monkeypatch.setattr(calibration, "_measure", lambda model: calibration.Speed(10.0, 20.0))
    with caplog.at_level(logging.WARNING, "vkprefill"):
        assert calibration.speed_of(pair.draft) == calibration.Speed(10.0, 20.0)
    assert "is not usable" in caplog.text
    assert calibration._load(path)[calibration._key(pair.draft)] == calibration.Speed(10.0, 20.0)


@pytest.mark.parametrize("place", ["file for folder", "folder for file"])
def test_calibration_that_cannot_be_stored(pair, meters, cache_home, monkeypatch, caplog, place):
    folder = cache_home / "vkprefill"
    if place == "file for folder":
        folder.write_text("")
    else:
        (folder / "calibration.json").mkdir(parents=True)
    monkeypatch.setattr(calibration, "_measure", lambda model: calibration.Speed(10.0, 20.0))
    with caplog.at_level(logging.WARNING, "vkprefill"):
        assert calibration.speed_of(pair.draft) == calibration.Speed(10.0, 20.0)
    assert "cannot be written" in caplog.text
    assert place == "file for folder" or [p.name for p in folder.iterdir()] == ["calibration.json"], "nothing left over"


# -- failures ----------------------------------------------------------------------------------------------------------


def test_vocabularies_must_be_the_same(tiny, built_in_draft):
    with pytest.raises(
        vkprefill.RequestError, match=r"draft draft.gguf and target tiny-c-q4km.gguf: their vocabularies differ"
    ):
        SpecPrefill(tiny, built_in_draft)
    with pytest.raises(vkprefill.RequestError, match="vocabularies differ"):
        vkprefill.generate(tiny, "x", draft=built_in_draft)


@pytest.mark.parametrize("on_error", ["dense", "error"])
@pytest.mark.parametrize("where", ["prefill", "decode", "candidates"])
def test_failing_scorer(tiny, tiny_draft, prompt, monkeypatch, where, on_error):
    """The next request is right bit for bit: as after a request that never was."""
    wanted = []
    for fails in (False, True):
        pair = SpecPrefill(tiny, tiny_draft, replace(SPARSE, on_error=on_error))
        pair.score(prompt[:100])
        if fails:
            with monkeypatch.context() as patch:
                fail_later(patch, tiny_draft.runner, where)
                if on_error == "error":
                    with pytest.raises(vkprefill.VkPrefillError, match="made to fail"):
                        pair.prefill(prompt[:250])
                else:
                    out = pair.prefill(prompt[:250])
                    check_report(out.report, guards.FAILED, 250, pair.config)
                    assert out.report.reason == "the scorer failed: made to fail"
                    assert np.array_equal(out.logits, dense(tiny, prompt[:250]))
                    out.cache.close()
        out = pair.prefill([*prompt[:100], *prompt[150:300]])
        wanted.append((out.logits, out.importance, out.kept))
        assert out.status == guards.ACTIVE
        out.cache.close()
        pair.close()
    assert all(np.array_equal(a, b) for a, b in zip(*wanted, strict=True))


def fail_later(patch, runner, name: str) -> None:
    """The named method fails after its work is done, from its first call on."""
    original = getattr(runner, name)

    def fail(*args: object, **options: object) -> None:
        original(*args, **options)
        raise vkprefill.VkPrefillError("made to fail")

    patch.setattr(runner, name, fail)


def test_importance_that_is_not_finite(pair, prompt, monkeypatch):
    score = Scorer.score

    def spoilt(self, *args, **options):
        found = score(self, *args, **options)
        found.values[17] = np.nan
        return found

    monkeypatch.setattr(Scorer, "score", spoilt)
    plan = pair.plan(prompt)
    assert plan.report.status == guards.FAILED and "token 17 has nan" in plan.report.reason
    monkeypatch.undo()
    assert pair.plan(prompt).report.status == guards.ACTIVE, "not remembered"


def test_scoring_without_memory(pair, prompt, monkeypatch):
    """Not killed: prefilled densely, with the numbers; afterwards all is as before."""
    with monkeypatch.context() as patch:
        patch.setattr(type(pair.draft.device), "available_bytes", lambda *_: 1 << 10)
        plan = pair.plan(prompt, config=replace(SPARSE, tail_queries=4096))
        assert plan.report.status == guards.FAILED
        assert re.search(r"scoring of 300 prompt tokens with \d+ queries .*: needs \d+ MiB", plan.report.reason)
        with pytest.raises(vkprefill.OutOfMemoryError, match="scoring of 300"):
            pair.plan(prompt, config=replace(SPARSE, tail_queries=4096, on_error="error"))
    assert pair.plan(prompt).report.status == guards.ACTIVE


def test_prompt_beyond_the_drafts_context(pair):
    """The draft holds 512 tokens, the target 1536."""
    prompt = [i % 251 for i in range(600)]
    out = pair.prefill(prompt)
    assert out.status == guards.FAILED and "draft context: 600 prompt and 2 look-ahead tokens" in out.report.reason
    out.cache.close()
    with pytest.raises(vkprefill.RequestError, match="draft context"):
        pair.plan(prompt, config=replace(SPARSE, on_error="error"))
    out = pair.prefill(prompt, config=replace(SPARSE, window=200))
    assert out.status == guards.ACTIVE and out.report.kept_n < 300
    out.cache.close()


@pytest.mark.parametrize("own", [True, False])
def test_interrupted_target_prefill(pair, prompt, monkeypatch, own):
    """No pages are lost, the caller's cache is empty again, and the next request is the same bits."""
    want = pair.prefill(prompt)
    want.cache.close()
    cache, pages = None if own else pair.target.new_cache(), len(pair.target.runner.pool.free_pages)

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pair.prefill(prompt, cache, progress=stop)
    assert len(pair.target.runner.pool.free_pages) == pages and (own or len(cache) == 0)
    out = pair.prefill(prompt, cache)
    assert np.array_equal(out.logits, want.logits)
    out.cache.close()


@pytest.mark.parametrize("prompt", [[], [320], [-1]])
def test_bad_prompts(pair, prompt):
    pages = len(pair.target.runner.pool.free_pages)
    with pytest.raises(vkprefill.RequestError):
        pair.prefill(prompt)
    assert len(pair.target.runner.pool.free_pages) == pages


@pytest.mark.parametrize("length", [1, 2, 5, 33])
def test_short_prompts(pair, prompt, length):
    out = pair.prefill(prompt[:length])
    assert out.status in (guards.KEPT_ALL, guards.ACTIVE) and (length > 6 or out.status == guards.KEPT_ALL)
    assert len(out.cache) == out.report.kept_n and out.cache.next_position == length
    out.cache.close()


# -- answers -----------------------------------------------------------------------------------------------------------


def test_built_in_pair_answers_at_a_fifth(built_in, built_in_draft):
    config = SpecPrefillConfig(select_mode="chunk", keep_ratio=0.2, tail=32, break_even=False)
    shared = SpecPrefill(built_in, built_in_draft, config)
    right = []
    for sample in PROMPTS[:8]:
        result = vkprefill.generate(built_in, sample["user"], draft=shared, sampling=GREEDY)
        assert result.specprefill.status == guards.ACTIVE
        assert result.specprefill.kept_n < 0.3 * sample["n_tokens"]
        right.append(result.text == sample["answer"])
    shared.close()
    assert sum(right) >= 7, right


def test_chunks_that_follow_lines(built_in, built_in_draft):
    ids = built_in.chat_template.encode([{"role": "user", "content": PROMPTS[0]["user"]}])
    shared = SpecPrefill(built_in, built_in_draft, replace(SPARSE, chunk_align="lines"))
    bounds = shared.score(ids).selection.chunk_bounds
    shared.close()
    texts = [built_in.tokenizer.token_bytes(t) for t in ids]
    assert any(texts[b - 1].endswith(b"\n") for b in bounds[1:-1])
    assert not set(bounds[1:-1].tolist()) <= set(range(0, len(ids), 32))
