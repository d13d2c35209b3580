"""Scorers of drafts, and the importance that they must find: reduced in numpy from captured rows."""

import numpy as np
import pytest

import vkprefill
from tools.make_model import make_config, make_model
from vkprefill import AttentionCapture, SpecPrefillConfig
from vkprefill.engine.model import Model
from vkprefill.specprefill.score_programs import ScorePrograms
from vkprefill.specprefill.scorer import Scorer, lookahead_steps
from vkprefill.specprefill.selection import importance_from_rows
from vkprefill.text.tokenizer import Tokenizer

LIMIT = 1e-5  # of the largest value: sums in another order, or the same tokens in other chunks


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
