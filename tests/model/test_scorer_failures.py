"""A scoring that is cut off, or finds what is not finite, leaves no trace."""

import numpy as np
import pytest

import vkprefill
from tests.model.scoring import check, numpy_importance, programs_of, settings_of, tokens, without_ends
from vkprefill.specprefill.scorer import Scorer
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.program import Program


@pytest.mark.parametrize("when", ["prefill", "decode", "between", "total"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, vkprefill.VkPrefillError])
def test_failure_leaves_no_trace(eight_layers, scorer_of, monkeypatch, when, error):
    config, scorer, token_ids = settings_of(lookahead=4), scorer_of(eight_layers), tokens(160)
    without_ends(monkeypatch)
    scorer.score(token_ids[:60], config)
    calls = 0

    def fail(*_: object, **__: object) -> None:
        nonlocal calls
        calls += 1
        if when != "between" or calls == 3:
            raise error("stop")

    with monkeypatch.context() as patch, pytest.raises(error):
        if when == "decode":
            patch.setattr(programs_of(scorer)._decode, "run", fail)
        if when == "between":  # after the second look-ahead token was run
            candidates = eight_layers.runner.candidates
            patch.setattr(eight_layers.runner, "candidates", lambda count: (fail(), candidates(count))[1])
        if when == "total":
            patch.setattr(programs_of(scorer), "total", fail)
        scorer.score(token_ids[:120], config, progress=fail if when == "prefill" else None)
    found = scorer.score(token_ids, config)
    assert found.cached_n == (60 if when == "prefill" else 120)
    check(found, *numpy_importance(eight_layers, token_ids, config))


@pytest.mark.parametrize(
    "settings", [{}, {"lookahead": 0}, {"tail_queries": 4}, {"score_layers": (3,)}, {"window": 64}]
)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_importance_that_is_not_finite(eight_layers, scorer_of, monkeypatch, settings, value):
    """An error of the scorer, also where no look-ahead logits are made, and nothing goes on from it."""
    config = settings_of(**{"lookahead": 2, **settings})
    scorer, token_ids = scorer_of(eight_layers), tokens(150)
    want = scorer.score(token_ids, config).values
    programs = programs_of(scorer)
    clear = programs.start

    def start(num_tokens: int, positions: np.ndarray) -> None:
        clear(num_tokens, positions)
        spoilt = np.zeros(programs._total.shape, np.float32)
        spoilt[[17, 30]] = value
        eight_layers.device.upload(programs._total, [spoilt])

    scorer.reset()
    with monkeypatch.context() as patch:
        patch.setattr(programs, "start", start)
        with pytest.raises(
            vkprefill.VkPrefillError, match="^importance by the draft eight.gguf: found NaN or infinity"
        ):
            scorer.score(token_ids, config)
    assert np.array_equal(scorer.score(token_ids, config).values, want)


CALLS = {"buffer": Device, "operation": Device, "program": Device, "dispatch": Program, "run": Program}


@pytest.mark.parametrize("name", CALLS)
def test_failure_at_any_allocation_recording_or_run(eight_layers, scorer_of, monkeypatch, name):
    """Whatever is cut off, nothing half-made stays, and the next scoring is right."""
    scorer, config, token_ids = scorer_of(eight_layers), settings_of(lookahead=2), tokens(70)
    without_ends(monkeypatch)
    want, whole = scorer.score(token_ids, config).values, eight_layers.device.allocated["scoring"]
    original, calls, fails_at = getattr(CALLS[name], name), 0, 0

    def fail(self, *args: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == fails_at:
            raise KeyboardInterrupt
        return original(self, *args, **options)

    monkeypatch.setattr(CALLS[name], name, fail)
    scorer.close()
    reopened = Scorer(eight_layers)
    assert np.array_equal(reopened.score(token_ids, config).values, want)
    total = calls
    reopened.close()
    for number in sorted({1, 2, 3, 4, 5, 6, total // 3, total // 2, total - 1, total} & set(range(1, total + 1))):
        fails_at, calls, scorer = number, 0, Scorer(eight_layers)
        with pytest.raises(KeyboardInterrupt):
            scorer.score(token_ids, config)
        assert eight_layers.device.allocated["scoring"] in (0, whole)
        assert np.array_equal(scorer.score(token_ids, config).values, want)
        scorer.close()
        assert eight_layers.device.allocated["scoring"] == 0
