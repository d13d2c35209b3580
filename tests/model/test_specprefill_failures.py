"""A scorer that fails, runs out of memory or is interrupted, and the requests after it."""

import re
from dataclasses import replace

import numpy as np
import pytest

import vkprefill
from tests.model.sparse_requests import SPARSE, check_report, dense
from vkprefill import SpecPrefill
from vkprefill.specprefill import guards
from vkprefill.specprefill.scorer import Scorer


def test_vocabularies_must_be_the_same(tiny, draft):
    with pytest.raises(
        vkprefill.RequestError, match=r"draft draft.gguf and target tiny-c-q4km.gguf: their vocabularies differ"
    ):
        SpecPrefill(tiny, draft)
    with pytest.raises(vkprefill.RequestError, match="vocabularies differ"):
        vkprefill.generate(tiny, "x", draft=draft)


@pytest.mark.parametrize("on_error", ["dense", "error"])
@pytest.mark.parametrize("where", ["prefill", "decode", "candidates"])
def test_failing_scorer(tiny, tiny_draft, prompt, monkeypatch, where, on_error):
    """The next request is right bit for bit: as after a request that never was."""
    wanted = []
    for fails in (False, True):
        pair = SpecPrefill(tiny, tiny_draft, replace(SPARSE, on_error=on_error, protect_question=False))
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
    score = Scorer.score_in_slices

    def spoilt(self, *args, **options):
        found = yield from score(self, *args, **options)
        found.values[17] = np.nan
        return found

    monkeypatch.setattr(Scorer, "score_in_slices", spoilt)
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
