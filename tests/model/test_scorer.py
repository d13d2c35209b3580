"""The draft's importance, reduced on the device, against the numpy reduction of captured rows."""

import numpy as np
import pytest

import vkprefill
from tests.model.conftest import BUILT_IN
from tests.reference.fixtures import FIXTURES
from tools.make_model import make_config, make_model
from vkprefill import AttentionCapture, SpecPrefillConfig
from vkprefill.engine.model import Model
from vkprefill.engine.speed_meter import SpeedMeter
from vkprefill.specprefill import score_programs
from vkprefill.specprefill.score_programs import ScorePrograms
from vkprefill.specprefill.scorer import Scorer, lookahead_steps, score_kind
from vkprefill.specprefill.selection import importance_from_rows, windows
from vkprefill.text.tokenizer import Tokenizer
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.program import Program

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


def settings_of(**settings: object) -> SpecPrefillConfig:
    """All layers score, unless the settings name some."""
    return SpecPrefillConfig(**{"score_depth": 1, **settings})


def numpy_importance(model: Model, token_ids: list[int], config: SpecPrefillConfig) -> tuple[np.ndarray, int]:
    """(importance [T], steps) from rows that are read back."""
    layers = None if config.score_layers == "all" else config.score_layers
    early = layers is not None and model.config.attention_layers[-1] not in layers
    tail = min(config.tail_queries or (32 if early else 1), len(token_ids))
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


def programs_of(scorer: Scorer) -> ScorePrograms:
    """Those used last."""
    return next(reversed(scorer._store.programs.values()))


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


@pytest.mark.parametrize("layers", [(0,), (2, 3), (9,)])
def test_layers_without_attention(eight_layers, scorer_of, layers):
    with pytest.raises(vkprefill.RequestError, match=r"layers: \d has no attention rows, wanted some of 1, 3, 5, 7"):
        scorer_of(eight_layers).score(tokens(20), settings_of(score_layers=layers))


def test_progress_counts_the_new_tokens(eight_layers, scorer_of):
    scorer, calls = scorer_of(eight_layers), []
    scorer.score(tokens(100), settings_of(), progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (100, 100) and calls == sorted(calls)
