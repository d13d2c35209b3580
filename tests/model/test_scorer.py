"""The draft's importance, reduced on the device, against the numpy reduction of captured rows."""

import numpy as np
import pytest

import vkprefill
from tests.model.scoring import LIMIT, check, numpy_importance, programs_of, settings_of, tokens, without_ends
from tests.reference.fixtures import FIXTURES
from vkprefill.engine.speed_meter import SpeedMeter
from vkprefill.specprefill.scorer import score_kind
from vkprefill.specprefill.selection import windows
from vkprefill.text.tokenizer import Tokenizer

SETTINGS = [
    {},
    {"lookahead": 0},
    {"lookahead": 2, "pool_size": 1},
    {"tail_queries": 5},
    {"tail_queries": 40, "pool_size": 255},
    {"tail_queries": 300, "lookahead": 3},
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("count", [1, 3, 200])
def test_built_in_draft(draft, scorer_of, settings, count):
    config, token_ids = settings_of(**settings), tokens(count, draft.config.vocab_size)
    check(scorer_of(draft).score(token_ids, config), *numpy_importance(draft, token_ids, config))


@pytest.mark.parametrize(("name", "kv_type"), list(zip(FIXTURES, ["f32", "f16"] * 2, strict=True)))
def test_fixtures(load_model, scorer_of, prompt, name, kv_type):
    """One scorer for all settings: what one leaves in the draft's cache must not mislead the next."""
    model = load_model(name, kv_type=kv_type)
    scorer = scorer_of(model)
    for settings in SETTINGS:
        config = settings_of(**settings)
        expected = numpy_importance(model, prompt[:140], config)
        scorer._prompts.reset()  # pages of its cache are needed by the captures
        check(scorer.score(prompt[:140], config), *expected)
        scorer._prompts.reset()


@pytest.mark.parametrize("layers", ["all", (1,), (3, 1), (5,), (1, 7), (7,)])
@pytest.mark.parametrize("tail", [0, 1, 33, 70])
def test_layers_and_tail_queries_across_chunks(eight_layers, scorer_of, layers, tail):
    config = settings_of(score_layers=layers, tail_queries=tail, lookahead=3)
    token_ids = tokens(150)
    check(scorer_of(eight_layers).score(token_ids, config), *numpy_importance(eight_layers, token_ids, config))


@pytest.mark.parametrize(("layers", "last"), [((1,), 1), ((3, 1), 3), ((5,), 5)])
def test_draft_stops_after_the_last_scored_layer(eight_layers, scorer_of, layers, last):
    config, scorer = settings_of(score_layers=layers, tail_queries=4), scorer_of(eight_layers)
    assert scorer.score(tokens(100), config).lookahead_ms < scorer.score(tokens(100), settings_of()).lookahead_ms
    scorer.score(tokens(100), config)
    programs = programs_of(scorer)
    assert programs._decode is None
    for program, end in (
        (programs._plain, f"draft.L{last:02d}.head_norm_rope"),
        (programs._scored, "score.importance_sum"),
    ):
        run = {int(label.split(".")[1][1:]) for label in program.labels if ".L" in label}
        assert run == set(range(last + 1)), "no layer after the last scored one"
        assert program.labels[-1] == end
        assert not any(f"L{last:02d}.attention_f32" in label for label in program.labels)
    assert sum("attention_rows" in label for label in programs._scored.labels) == len(layers)


def test_changed_settings_never_use_an_incomplete_cache(eight_layers, scorer_of):
    """After early layers alone the cache holds nothing of the later ones."""
    scorer, token_ids = scorer_of(eight_layers), tokens(90)
    some = [
        {"score_layers": (3,)},
        {},
        {"score_layers": (1,)},
        {"score_layers": (5,)},
        {"tail_queries": 2},
        {"lookahead": 2},
    ]
    for i, settings in enumerate(some):
        config, part = settings_of(**settings), token_ids[: 40 + 8 * i]
        check(scorer.score(part, config), *numpy_importance(eight_layers, part, config))


def test_lookahead_stops_at_an_end_token(draft, scorer_of, monkeypatch):
    token_ids, config = tokens(100, draft.config.vocab_size), settings_of(lookahead=6)
    cache = draft.new_cache()
    chosen = [int(draft.prefill(token_ids, cache=cache).argmax())]
    while len(chosen) < 6:
        chosen.append(int(draft.decode(chosen[-1], cache).argmax()))
    cache.close()
    scorer = scorer_of(draft)
    ends = [(token, chosen.index(token)) for token in dict.fromkeys(chosen)]
    for token, steps in [*ends, (draft.config.vocab_size, 6)]:
        monkeypatch.setattr(Tokenizer, "eog_token_ids", property(lambda _, end=token: frozenset({end})))
        scorer._prompts.reset()
        found = scorer.score(token_ids, config)
        assert found.num_steps == 1 + steps
        check(found, *numpy_importance(draft, token_ids, config))


@pytest.mark.parametrize("count", [1016, 1024])
def test_rows_have_room_for_lookahead(draft, scorer_of, monkeypatch, count):
    """Where the prompt fills the buffer of rows, scores of later keys must not run into the next head's."""
    config, token_ids = settings_of(lookahead=8), tokens(count, draft.config.vocab_size)
    without_ends(monkeypatch)
    check(scorer_of(draft).score(token_ids, config), *numpy_importance(draft, token_ids, config))


@pytest.mark.parametrize("settings", [{"lookahead": 2}, {"tail_queries": 3}])
@pytest.mark.parametrize("window", [32, 64, 149, 1000])
def test_windows(eight_layers, scorer_of, window, settings):
    config, token_ids = settings_of(window=window, **settings), tokens(150)
    expected = np.full(len(token_ids), np.nan, np.float32)
    for start, end, score_start, score_end in windows(len(token_ids), window):
        part, _ = numpy_importance(eight_layers, token_ids[start:end], config)
        expected[score_start:score_end] = part[score_start - start : score_end - start]
    assert np.isfinite(expected).all()
    found = scorer_of(eight_layers).score(token_ids, config)
    assert np.abs(found.values - expected).max() <= LIMIT * expected.max()


def test_window_progress_and_prompts_longer_than_the_context(eight_layers, scorer_of):
    """Windows score what one window refuses."""
    token_ids, calls = tokens(1100), []
    scorer = scorer_of(eight_layers)
    message = r"draft context: 1100 prompt and 1 look-ahead tokens, the draft holds 1024; use windows"
    with pytest.raises(vkprefill.RequestError, match=message):
        scorer.score(token_ids, settings_of(lookahead=1))
    config = settings_of(window=600, lookahead=1)
    found = scorer.score(token_ids, config, progress=lambda done, total: calls.append((done, total)))
    assert np.isfinite(found.values).all() and (found.values > 0).all()
    assert calls[-1] == (1100, 1100) and calls == sorted(calls) and {total for _, total in calls} == {1100}


def test_context_to_the_last_slot(eight_layers, scorer_of):
    """Look-ahead counts only where there is any."""
    scorer = scorer_of(eight_layers)
    for settings, room in (
        ({"lookahead": 4}, 4),
        ({"lookahead": 4, "tail_queries": 2}, 0),
        ({"score_layers": (1,)}, 0),
    ):
        config = settings_of(**settings)
        assert scorer.score(tokens(1024 - room), config).cached_n in (0, 1020)
        with pytest.raises(vkprefill.RequestError, match=f"draft context: {1025 - room} prompt and {room} look-ahead"):
            scorer.score(tokens(1025 - room), config)


@pytest.mark.parametrize("settings", [{}, {"tail_queries": 4}, {"score_layers": (3,)}, {"tail_queries": 30}])
def test_next_turn_goes_on(eight_layers, scorer_of, settings):
    """From the mark if history was edited after it, from the prompt's end if it goes on; values as from scratch."""
    config, scorer = settings_of(**settings), scorer_of(eight_layers)
    first, history = tokens(120), 100
    assert scorer.score(first, config, mark_at=[history]).cached_n == 0
    turns = [
        (first[:history] + tokens(40, seed=2), history),
        (first[:history] + tokens(40, seed=2) + tokens(35, seed=3), history + 40),
        (first[:history] + tokens(40, seed=2) + tokens(50, seed=4), history + 40),
        (tokens(80, seed=5), 0),
    ]
    for token_ids, cached in turns:
        found = scorer.score(token_ids, config, mark_at=[len(token_ids) - 5])
        assert found.cached_n == cached
        check(found, *numpy_importance(eight_layers, token_ids, config))
    again = scorer.score(turns[-1][0], config)
    few = config.tail_queries <= 5 and config.score_layers == "all"
    assert again.cached_n == (75 if few else 0), "at least the queries are run anew"
    check(again, *numpy_importance(eight_layers, turns[-1][0], config))


@pytest.mark.parametrize("settings", [{}, {"score_layers": (1,), "tail_queries": 4}, {"pool_size": 1}])
def test_speeds_of_scoring_are_apart(eight_layers, scorer_of, settings):
    """Neither the model's own prefills nor other kinds of scoring are measured by it."""
    run, config = eight_layers.runner, settings_of(**{"lookahead": 3, **settings})
    run.meter = SpeedMeter(run.sizes.prefill_chunk)
    scorer = scorer_of(eight_layers)
    for seed in range(3):
        scorer.score(tokens(100, seed=seed + 1), config)
    own = run.meter.of(score_kind(config, eight_layers))
    assert own.prefill_per_s > 0 and (own.decode_per_s is None) == ("tail_queries" in settings)
    other = run.meter.of(score_kind(settings_of(pool_size=101), eight_layers))
    assert run.meter.prefill_per_s is run.meter.decode_per_s is other.prefill_per_s is None
    measured = own.prefill_per_s
    eight_layers.logits(tokens(40))
    for _ in range(2):
        eight_layers.prefill(tokens(64))
    assert run.meter.prefill_per_s > 0 and own.prefill_per_s == measured


@pytest.mark.parametrize("token_ids", [[1, True], [False], [1.0, 2], np.array([True, False]), [[1]], []])
def test_what_is_no_token_id(eight_layers, scorer_of, token_ids):
    with pytest.raises(vkprefill.RequestError, match="token_ids: found "):
        scorer_of(eight_layers).score(token_ids, settings_of())


@pytest.mark.parametrize("layers", [(0,), (2, 3), (9,)])
def test_layers_without_attention(eight_layers, scorer_of, layers):
    with pytest.raises(vkprefill.RequestError, match=r"layers: \d has no attention rows, wanted some of 1, 3, 5, 7"):
        scorer_of(eight_layers).score(tokens(20), settings_of(score_layers=layers))


def test_progress_counts_the_new_tokens(eight_layers, scorer_of):
    scorer, calls = scorer_of(eight_layers), []
    scorer.score(tokens(100), settings_of(), progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (100, 100) and calls == sorted(calls)
