"""The arithmetic of benchmarks/expected_780m.py, by hand."""

from types import SimpleNamespace

import pytest

from benchmarks import expected_780m as expected
from benchmarks.kernel_bounds import Cost
from benchmarks.phase_bounds import Estimate

COUNTS = {"waves": 24, "wave": 32, "issue": 2700, "pairs": 1080, "lds_passes": 0, "vmem_bytes": 0, "lines": 0}


def test_pairs_that_take_longer():
    """Two in five of 2,700 instructions on 24 SIMDs are pairs: with 1.25 cycles for each a tenth more."""
    estimate = Estimate(Cost(issue=1.0, memory=1e-9), COUNTS)
    best = expected.BEST.seconds(estimate)
    assert best == pytest.approx(2700 / 24 / 2.7e9)
    assert expected.Circumstances(pair=1.25).seconds(estimate) == pytest.approx(1.1 * best)
    assert expected.Circumstances(pair=1.25, clock=2.0e9).seconds(estimate) == pytest.approx(1.1 * best * 2.7 / 2.0)


def test_all_are_taken_for_pairs_where_nothing_was_counted():
    assert expected.Circumstances(pair=1.25).seconds(Estimate(Cost(issue=0.5), None)) == pytest.approx(0.625)


def test_what_memory_binds_hangs_on_memory_alone():
    estimate = Estimate(Cost(issue=0.1, lds=0.2, cache=0.3, memory=1.0), None)
    likely = expected.Circumstances(pair=1.25, clock=2.0e9, memory=73e9)
    assert likely.seconds(estimate) == pytest.approx(90 / 73)
    bound_by_cache = Estimate(Cost(cache=1.0, memory=1.0), None)
    assert likely.seconds(bound_by_cache) == pytest.approx(2.7 / 2.0)


def test_chunks_shrink_with_depth():
    assert list(expected.chunks(1000, lambda depth: 512 if depth < 500 else 320)) == [(0, 512), (512, 320), (832, 168)]


def fake(speed: float, step_ms: float = 0.0) -> SimpleNamespace:
    """Bounds of a model that runs so many tokens a second, half the time of them up to the early layer."""
    return SimpleNamespace(
        config=SimpleNamespace(attention_layers=(3, 7, 11, 15, 19, 23)),
        step_seconds=lambda depth: step_ms / 1e3,
        rows_seconds=lambda num_keys, num_layers: num_keys * num_layers * 1e-9,
        prompt_seconds=lambda num_tokens, last_layer=None: num_tokens / speed * (0.5 if last_layer else 1.0),
    )


def test_time_to_the_first_token():
    """5,000 tokens at 1,000 a second, 2,000 kept; the draft at 5,000 a second, 8 steps of 5 ms, rows of 9 queries."""
    dense, whole, early = expected.first_token_ms(fake(1000), fake(5000, 5.0), 5000, 2000)
    assert dense == pytest.approx(5000)
    assert whole == pytest.approx(1000 + 8 * 5 + 9 * 6 * 5000e-6 + 2000)
    assert early == pytest.approx(500 + 3 * 5000e-6 + 2000)
