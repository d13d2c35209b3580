"""The memory of scoring: what is kept, shared and given back."""

import numpy as np
import pytest

import vkprefill
from tests.model.scoring import check, numpy_importance, programs_of, settings_of, tokens
from vkprefill.specprefill import score_programs
from vkprefill.specprefill.score_programs import ScorePrograms
from vkprefill.specprefill.scorer import Scorer, score_kind
from vkprefill.vulkan.device import Device


def test_more_queries_than_fit_take_more_runs(eight_layers, scorer_of, monkeypatch):
    heads, token_ids = eight_layers.config.num_attention_heads, tokens(150)
    monkeypatch.setattr(score_programs, "ROWS_BYTES", 4 * heads * score_programs.STRIDE * 9)
    scorer = scorer_of(eight_layers)
    for settings in ({"tail_queries": 70}, {"tail_queries": 150}, {"tail_queries": 4096, "score_layers": (3,)}, {}):
        config = settings_of(**settings)
        check(scorer.score(token_ids, config, mark_at=[120]), *numpy_importance(eight_layers, token_ids, config))
        assert programs_of(scorer).most == (9 if settings else 1)
        assert programs_of(scorer)._rows.num_bytes <= score_programs.ROWS_BYTES
        assert scorer.score(token_ids[:140] + tokens(20), settings_of(tail_queries=12)).cached_n <= 148


def test_memory_of_a_large_request_is_given_back(eight_layers, scorer_of, monkeypatch):
    scorer, token_ids, device = scorer_of(eight_layers), tokens(150), eight_layers.device
    scorer.score(token_ids, settings_of())
    usual, programs = device.allocated["scoring"], programs_of(scorer)
    monkeypatch.setattr(score_programs, "KEPT_BYTES", 2 * programs.num_bytes)
    large = settings_of(tail_queries=32)
    check(scorer.score(token_ids, large), *numpy_importance(eight_layers, token_ids, large))
    assert device.allocated["scoring"] == usual and programs_of(scorer) is programs, "what is used as a rule stays"


def test_windows_share_the_programs_of_a_large_request(eight_layers, scorer_of, monkeypatch):
    """However little is kept between prompts."""
    monkeypatch.setattr(score_programs, "KEPT_BYTES", 0)
    made, scorer = [], scorer_of(eight_layers)
    monkeypatch.setattr(score_programs, "ScorePrograms", lambda *args: made.append(args) or ScorePrograms(*args))
    scorer.score(tokens(300), settings_of(window=64, lookahead=1))
    assert len(made) == 1 and made[0][2] == 65 and eight_layers.device.allocated["scoring"] == 0


def test_programs_of_few_kinds_are_kept(eight_layers, scorer_of):
    scorer, sizes = scorer_of(eight_layers), []
    for pool_size in range(1, 4 * score_programs.KEPT_PROGRAMS, 2):
        scorer.score(tokens(40), settings_of(pool_size=pool_size, lookahead=0))
        sizes.append(eight_layers.device.allocated["scoring"])
    assert len(scorer._store.programs) == score_programs.KEPT_PROGRAMS
    assert len(set(sizes[score_programs.KEPT_PROGRAMS - 1 :])) == 1, "flat"


def test_kept_programs_go_when_memory_is_needed(eight_layers, scorer_of, monkeypatch):
    """But not those in use."""
    scorer, config, token_ids, device = scorer_of(eight_layers), settings_of(), tokens(90), eight_layers.device
    want = scorer.score(token_ids, config).values
    with monkeypatch.context() as patch:
        patch.setattr(Device, "available_bytes", lambda self, *_: 0 if self.allocated["scoring"] else 1 << 20)
        with scorer._store.borrow(score_kind(config, eight_layers), 90) as programs:
            with pytest.raises(vkprefill.OutOfMemoryError, match="needed: needs"):
                device.buffer("needed", (1 << 10,))
            assert programs.total().shape == (90,)
        device.buffer("needed", (1 << 10,)).free()
    assert device.allocated["scoring"] == 0
    scorer.reset()
    assert np.array_equal(scorer.score(token_ids, config).values, want)


def test_scorers_of_a_draft_share_programs(eight_layers, scorer_of):
    first, config, token_ids = scorer_of(eight_layers), settings_of(lookahead=2), tokens(100)
    want, taken = first.score(token_ids, config).values, eight_layers.device.allocated["scoring"]
    second = Scorer(eight_layers)
    assert np.array_equal(second.score(token_ids, config).values, want)
    assert eight_layers.device.allocated["scoring"] == taken and programs_of(first) is programs_of(second)
    second.close()
    assert eight_layers.device.allocated["scoring"] == taken, "the first one is open"
    assert first.score(token_ids, config).cached_n == 0 and first.score(tokens(100) + [1], config).cached_n == 100


def test_scoring_that_does_not_fit_is_refused_in_one_line(eight_layers, scorer_of, monkeypatch):
    scorer, token_ids = scorer_of(eight_layers), tokens(150)
    with monkeypatch.context() as patch:
        patch.setattr(Device, "available_bytes", lambda self, *_: 1 << 10)
        message = r"^scoring of 150 prompt tokens with 32 queries at a time: needs \d+ MiB.* has \d+ MiB left$"
        with pytest.raises(vkprefill.OutOfMemoryError, match=message):
            scorer.score(token_ids, settings_of(tail_queries=70))
    assert eight_layers.device.allocated["scoring"] == 0
    config = settings_of(lookahead=1)
    check(scorer.score(token_ids, config), *numpy_importance(eight_layers, token_ids, config))


def test_memory_is_linear_and_kept_while_it_suffices(draft, scorer_of):
    scorer, config = scorer_of(draft), settings_of(lookahead=1)
    sizes = []
    for count in (1000, 2000, 3000, 4000, 500):
        scorer.score(tokens(count, draft.config.vocab_size), config)
        sizes.append(draft.device.allocated["scoring"])
    steps = np.diff(sizes)
    assert steps[0] == steps[1] == steps[2] > 0 and steps[3] == 0
    heads = draft.config.num_attention_heads
    assert sizes[3] < 1.1 * 4 * 4096 * (heads + 2), "a row per head, the best of them and the sum"
