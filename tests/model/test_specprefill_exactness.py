"""What a sparse prefill computes: that of the kept tokens, bit for bit, whoever chose them."""

from dataclasses import replace

import numpy as np
import pytest

import vkprefill
from tests.model.sparse_requests import SPARSE, check_report, dense
from tests.reference.fixtures import LOGITS, model_path, rms
from tests.reference.forward import ReferenceModel
from vkprefill.specprefill import guards


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


def test_dry_run(pair, prompt):
    """score does no work of the target, and chooses what prefill chooses."""
    pages = len(pair.target.runner.pool.free_pages)
    scored = pair.score(prompt)
    assert len(pair.target.runner.pool.free_pages) == pages
    assert scored.importance.shape == (300,) and 10 <= len(scored.chunk_scores) < 20
    assert scored.kept.dtype == np.int32 and (np.diff(scored.kept) > 0).all()
    out = pair.prefill(prompt)
    assert out.kept.tolist() == scored.kept.tolist()
    assert out.report.kept_ranges == [list(r) for r in scored.kept_ranges]
    out.cache.close()


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
