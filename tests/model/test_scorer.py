"""The draft's importance, reduced on the device, against the numpy reduction of captured rows."""

import numpy as np
import pytest

import vkprefill
from tests.model.conftest import BUILT_IN
from tests.reference.fixtures import FIXTURES
from tools.make_model import make_config, make_model
from vkprefill import AttentionCapture, SpecPrefillConfig
from vkprefill.engine.model import Model
from vkprefill.specprefill.scorer import Scorer, lookahead_steps
from vkprefill.specprefill.selection import importance_from_rows, windows
from vkprefill.text.tokenizer import Tokenizer

LIMIT = 1e-5  # of the largest value: sums in another order, or the same tokens in other chunks


@pytest.fixture(scope="module")
def draft():
    with vkprefill.load(BUILT_IN.with_name("draft.gguf"), max_context=4096) as model:
        yield model


@pytest.fixture(scope="module")
def eight_layers(tmp_path_factory):
    """Attention in layers 1, 3, 5 and 7; chunks of 32 tokens."""
    config = make_config("tiny", num_hidden_layers=8, full_attention_interval=2)
    path = make_model(tmp_path_factory.mktemp("models") / "eight.gguf", config, seed=3)
    with vkprefill.load(path, max_context=1024, kv_type="f32", prefill_chunk=32) as model:
        assert model.config.attention_layers == (1, 3, 5, 7)
        yield model


@pytest.fixture
def scorer_of():
    """scorer_of(model) -> a Scorer; all are closed at the end, and their memory is back."""
    made: list[tuple[Scorer, int]] = []

    def make(model: Model) -> Scorer:
        model.logits([1])  # takes memory of its own, once
        made.append((Scorer(model), model.device.allocated.total()))
        return made[-1][0]

    yield make
    for scorer, before in reversed(made):
        scorer.close()
        assert scorer.draft.device.allocated.total() == before


def tokens(count: int, vocabulary: int = 256, seed: int = 1) -> list[int]:
    return np.random.Generator(np.random.SFC64(seed)).integers(0, vocabulary, count).tolist()


def numpy_importance(model: Model, token_ids: list[int], config: SpecPrefillConfig) -> tuple[np.ndarray, int]:
    """(importance [T], steps) from rows that are read back."""
    tail = min(max(1, config.tail_queries), len(token_ids))
    layers = None if config.score_layers == "all" else config.score_layers
    capture, cache = AttentionCapture(layers, range(-tail, 0)), model.new_cache()
    logits = model.prefill(token_ids, cache=cache, capture=capture)
    steps = [np.stack([rows[:, i] for rows in capture.pattern.values()]) for i in range(tail)]
    for _ in range(lookahead_steps(config, model)):
        if logits.argmax() in model.tokenizer.eog_token_ids:
            break
        logits = model.decode(int(logits.argmax()), cache, capture)
        steps.append(np.stack([rows[:, 0] for rows in capture.pattern.values()]))
    cache.close()
    return importance_from_rows(steps, len(token_ids), config.pool_size), len(steps)


def without_ends(monkeypatch) -> None:
    """No token ends the look-ahead."""
    monkeypatch.setattr(Tokenizer, "eog_token_ids", property(lambda _: frozenset()))


def check(found: vkprefill.specprefill.scorer.Importance, values: np.ndarray, steps: int) -> None:
    assert found.values.dtype == np.float32 and found.values.shape == values.shape
    assert np.abs(found.values - values).max() <= LIMIT * values.max()
    assert found.num_steps == steps


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
    config, token_ids = SpecPrefillConfig(**settings), tokens(count, draft.config.vocab_size)
    check(scorer_of(draft).score(token_ids, config), *numpy_importance(draft, token_ids, config))


@pytest.mark.parametrize(("name", "kv_type"), list(zip(FIXTURES, ["f32", "f16"] * 2, strict=True)))
def test_fixtures(load_model, scorer_of, prompt, name, kv_type):
    """One scorer for all settings: what one leaves in the draft's cache must not mislead the next."""
    model = load_model(name, kv_type=kv_type)
    scorer = scorer_of(model)
    for settings in SETTINGS:
        config = SpecPrefillConfig(**settings)
        expected = numpy_importance(model, prompt[:140], config)
        scorer._prompts.reset()  # pages of its cache are needed by the captures
        check(scorer.score(prompt[:140], config), *expected)
        scorer._prompts.reset()


@pytest.mark.parametrize("layers", ["all", (1,), (3, 1), (5,), (1, 7), (7,)])
@pytest.mark.parametrize("tail", [0, 1, 33, 70])
def test_layers_and_tail_queries_across_chunks(eight_layers, scorer_of, layers, tail):
    config = SpecPrefillConfig(score_layers=layers, tail_queries=tail, lookahead=3)
    token_ids = tokens(150)
    check(scorer_of(eight_layers).score(token_ids, config), *numpy_importance(eight_layers, token_ids, config))


@pytest.mark.parametrize(("layers", "last"), [((1,), 1), ((3, 1), 3), ((5,), 5)])
def test_draft_stops_after_the_last_scored_layer(eight_layers, scorer_of, layers, last):
    config, scorer = SpecPrefillConfig(score_layers=layers, tail_queries=4), scorer_of(eight_layers)
    assert scorer.score(tokens(100), config).lookahead_ms < scorer.score(tokens(100), SpecPrefillConfig()).lookahead_ms
    scorer.score(tokens(100), config)
    programs = scorer._programs
    assert programs._decode is None
    for program, end in (
        (programs._plain, f"draft.L{last:02d}.kv_store_f32"),
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
        config, part = SpecPrefillConfig(**settings), token_ids[: 40 + 8 * i]
        check(scorer.score(part, config), *numpy_importance(eight_layers, part, config))


def test_lookahead_stops_at_an_end_token(draft, scorer_of, monkeypatch):
    token_ids, config = tokens(100, draft.config.vocab_size), SpecPrefillConfig(lookahead=6)
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
    config, token_ids = SpecPrefillConfig(lookahead=8), tokens(count, draft.config.vocab_size)
    without_ends(monkeypatch)
    check(scorer_of(draft).score(token_ids, config), *numpy_importance(draft, token_ids, config))


@pytest.mark.parametrize("settings", [{"lookahead": 2}, {"tail_queries": 3}])
@pytest.mark.parametrize("window", [32, 64, 149, 1000])
def test_windows(eight_layers, scorer_of, window, settings):
    config, token_ids = SpecPrefillConfig(window=window, **settings), tokens(150)
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
        scorer.score(token_ids, SpecPrefillConfig(lookahead=1))
    config = SpecPrefillConfig(window=600, lookahead=1)
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
        config = SpecPrefillConfig(**settings)
        assert scorer.score(tokens(1024 - room), config).cached_n in (0, 1020)
        with pytest.raises(vkprefill.RequestError, match=f"draft context: {1025 - room} prompt and {room} look-ahead"):
            scorer.score(tokens(1025 - room), config)


@pytest.mark.parametrize("settings", [{}, {"tail_queries": 4}, {"score_layers": (3,)}, {"tail_queries": 30}])
def test_next_turn_goes_on(eight_layers, scorer_of, settings):
    """From the mark if history was edited after it, from the prompt's end if it goes on; values as from scratch."""
    config, scorer = SpecPrefillConfig(**settings), scorer_of(eight_layers)
    first, history = tokens(120), 100
    assert scorer.score(first, config, mark_at=history).cached_n == 0
    turns = [
        (first[:history] + tokens(40, seed=2), history),
        (first[:history] + tokens(40, seed=2) + tokens(35, seed=3), history + 40),
        (first[:history] + tokens(40, seed=2) + tokens(50, seed=4), history + 40),
        (tokens(80, seed=5), 0),
    ]
    for token_ids, cached in turns:
        found = scorer.score(token_ids, config, mark_at=len(token_ids) - 5)
        assert found.cached_n == cached
        check(found, *numpy_importance(eight_layers, token_ids, config))
    again = scorer.score(turns[-1][0], config)
    assert again.cached_n == (75 if config.tail_queries <= 5 else 0), "at least the queries are run anew"
    check(again, *numpy_importance(eight_layers, turns[-1][0], config))


@pytest.mark.parametrize("when", ["prefill", "decode", "between", "total"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, vkprefill.VkPrefillError])
def test_failure_leaves_no_trace(eight_layers, scorer_of, monkeypatch, when, error):
    config, scorer, token_ids = SpecPrefillConfig(lookahead=4), scorer_of(eight_layers), tokens(160)
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
            patch.setattr(scorer._programs._decode, "run", fail)
        if when == "between":  # after the second look-ahead token was run
            candidates = eight_layers.runner.candidates
            patch.setattr(eight_layers.runner, "candidates", lambda count: (fail(), candidates(count))[1])
        if when == "total":
            patch.setattr(scorer._programs, "total", fail)
        scorer.score(token_ids[:120], config, progress=fail if when == "prefill" else None)
    found = scorer.score(token_ids, config)
    assert found.cached_n == (60 if when == "prefill" else 120)
    check(found, *numpy_importance(eight_layers, token_ids, config))


@pytest.mark.parametrize(
    "settings", [{}, {"lookahead": 0}, {"tail_queries": 4}, {"score_layers": (3,)}, {"window": 64}]
)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_importance_that_is_not_finite(load_model, eight_layers, scorer_of, monkeypatch, settings, value):
    """An error of the scorer, also where no look-ahead logits are made, and nothing goes on from it."""
    config = SpecPrefillConfig(**{"lookahead": 2, **settings})
    half = load_model("tiny-c-q4km", kv_type="f16")
    for model, remedy in (
        (eight_layers, ""),
        (half, r', in its half-precision KV cache perhaps; load it with kv_type="f32"'),
    ):
        scorer, token_ids = scorer_of(model), tokens(150)
        want = scorer.score(token_ids, config).values
        clear = scorer._programs.start

        def start(num_tokens: int, clear=clear, scorer=scorer, device=model.device) -> None:
            clear(num_tokens)
            total = scorer._programs._total
            spoilt = np.zeros(total.shape, np.float32)
            spoilt[[17, 30]] = value
            device.upload(total, [spoilt])

        scorer.reset()
        with monkeypatch.context() as patch:
            patch.setattr(scorer._programs, "start", start)
            with pytest.raises(vkprefill.VkPrefillError) as caught:
                scorer.score(token_ids, config)
        name = f"importance: token 17 has {value}: the attention of the draft {model.path.name} overflows"
        assert str(caught.value) == name + remedy
        assert np.array_equal(scorer.score(token_ids, config).values, want)


def test_memory_is_linear_and_kept_while_it_suffices(draft, scorer_of):
    scorer, config = scorer_of(draft), SpecPrefillConfig(lookahead=1)
    sizes = []
    for count in (1000, 2000, 3000, 4000, 500):
        scorer.score(tokens(count, draft.config.vocab_size), config)
        sizes.append(draft.device.allocated["scoring"])
    steps = np.diff(sizes)
    assert steps[0] == steps[1] == steps[2] > 0 and steps[3] == 0
    heads = draft.config.num_attention_heads
    assert sizes[3] < 1.1 * 4 * 4096 * (heads + 2), "a row per head, the best of them and the sum"


@pytest.mark.parametrize("layers", [(0,), (2, 3), (9,)])
def test_layers_without_attention(eight_layers, scorer_of, layers):
    with pytest.raises(vkprefill.RequestError, match=r"layers: \d has no attention rows, wanted some of 1, 3, 5, 7"):
        scorer_of(eight_layers).score(tokens(20), SpecPrefillConfig(score_layers=layers))


def test_progress_counts_the_new_tokens(eight_layers, scorer_of):
    scorer, calls = scorer_of(eight_layers), []
    scorer.score(tokens(100), SpecPrefillConfig(), progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (100, 100) and calls == sorted(calls)
