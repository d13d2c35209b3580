"""Options and prompts of a sparse prefill: which are taken, and which are refused."""

import numpy as np
import pytest

import vkprefill
from vkprefill.specprefill import guards
from vkprefill.specprefill.plan import SparseRequest


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


BAD_RANGES = [
    [[5, 5]], [[5, 4]], [[-1, 4]], [[0, 301]], [[0, 10], [9, 20]], [[20, 30], [0, 10]], [[0]], [[0, 1, 2]], [0, 5],
    [["0", "5"]], [[0.0, 5.0]], [[False, True]], [None], "ab", 5, {"a": 1}, [[0, None]],
]  # fmt: skip


@pytest.mark.parametrize("ranges", BAD_RANGES)
def test_bad_kept_ranges(pair, prompt, ranges):
    with pytest.raises(vkprefill.RequestError, match="kept_ranges: found"):
        pair.plan(prompt, kept_ranges=ranges)


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
