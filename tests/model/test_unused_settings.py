"""Reports name the settings that were asked for and had no part, whoever scores and whoever asks."""

import json

import pytest

import vkprefill
from tests.model.sparse_requests import GREEDY, PROMPTS
from vkprefill import Session, SpecPrefillConfig
from vkprefill.engine.model import Model
from vkprefill.errors import RequestError
from vkprefill.specprefill.pipeline import SpecPrefill
from vkprefill.specprefill.plan import SpecPrefillReport

CALM = {"break_even": False, "tool_guard": False}


@pytest.fixture(scope="module")
def model(load_model) -> Model:
    return load_model("built-in", max_context=2048)


@pytest.fixture(scope="module")
def ids(model) -> list[int]:
    return model.tokenizer.encode(PROMPTS[0]["user"])[:150]


def report(model: Model, ids: list[int], **options: object) -> SpecPrefillReport:
    found = vkprefill.generate(model, ids, max_tokens=1, sampling=GREEDY, **options).specprefill
    json.dumps(found.as_dict())
    return found


def test_scorer_self(model, ids):
    spec = SpecPrefillConfig(scorer="self", lookahead=4, keep_ratio=0.3, check_share=0.2, **CALM)
    found = report(model, ids, spec=spec)
    assert found.unused == {
        "keep_ratio": "counts with select_mode chunk only",
        "lookahead": "counts with a draft only",
        "check_share": "check is off",
    }
    assert report(model, ids, spec=SpecPrefillConfig(scorer="self", tail_queries=8, **CALM)).unused == {}


def test_nobody_scores(model, ids):
    spec = SpecPrefillConfig(keep_ratio=0.3, check="on")
    assert report(model, ids, spec=spec).unused == {"keep_ratio": "no draft model in use"}
    given = report(model, ids, spec=spec, kept_ranges=[[0, 20]])
    assert given.unused == {"keep_ratio": "kept_ranges were given in place of a choice"}
    assert report(model, ids).unused == {}


def test_a_draft(model, draft, ids):
    pair = SpecPrefill(model, draft, SpecPrefillConfig(score_layer=3, draft_context=4096, **CALM))
    assert list(pair.plan(ids).report.unused) == ["score_layer"]
    asked = SpecPrefillConfig(draft_context=256, protect=((150, 200),), lookahead=4, tail_queries=4, **CALM)
    assert pair.plan(ids, config=asked).report.unused == {
        "protect": "the prompt has 150 tokens",
        "lookahead": "tail_queries count in its place",
        "draft_context": "the draft was loaded with a context of 4096 tokens",
    }
    off = pair.plan(ids, config=asked, enabled=False).report
    assert set(off.unused) == asked.given and {*off.unused.values()} == {"speculative prefill is off"}
    with pytest.raises(RequestError, match="^score_layers: 77 has no attention rows, wanted some of 3$"):
        pair.plan(ids, config=SpecPrefillConfig(score_layers=(77,), on_error="error", **CALM))
    pair.close()


def test_a_session(model):
    with_defaults = SpecPrefillConfig(scorer="self", lookahead=2, **CALM)
    session = Session(model, None, with_defaults)
    messages = [{"role": "user", "content": PROMPTS[0]["user"][:400]}]
    options = {"max_tokens": 1, "sampling": GREEDY}
    asked = SpecPrefillConfig.from_dict({"keep_ratio": 0.4}, with_defaults)
    try:
        assert list(session.generate(messages, spec=asked, **options).specprefill.unused) == ["keep_ratio"]
        assert list(session.generate(messages, **options).specprefill.unused) == ["lookahead"]
    finally:
        session.close()
