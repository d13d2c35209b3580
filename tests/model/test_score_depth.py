"""Drafts that stop at a share of their depth: which layer scores, which prompt tokens are its queries."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tests.model.sparse_requests import SPARSE
from vkprefill import SpecPrefill, SpecPrefillConfig
from vkprefill.engine.capture import AttentionCapture
from vkprefill.specprefill.protection import Protected
from vkprefill.specprefill.questions import Requests
from vkprefill.specprefill.scorer import lookahead_steps, score_kind, score_layers
from vkprefill.specprefill.selection import importance_from_rows


def model_of(num_layers: int, every: int = 4) -> SimpleNamespace:
    layers = tuple(range(every - 1, num_layers, every))
    return SimpleNamespace(config=SimpleNamespace(attention_layers=layers, num_hidden_layers=num_layers))


@pytest.mark.parametrize(
    "num_layers, depth, layer",
    [
        (24, 0.0, 3), (24, 1 / 6, 3), (24, 0.17, 7), (24, 0.5, 11), (24, 0.51, 15), (24, 0.99, 23),
        (32, 0.5, 15), (12, 1 / 3, 3), (12, 0.5, 7), (12, 0.7, 11), (4, 0.5, 3), (26, 0.99, 23),
    ],
)  # fmt: skip
def test_the_layer_at_a_share_of_the_depth(num_layers, depth, layer):
    draft, config = model_of(num_layers), SpecPrefillConfig(score_depth=depth)
    assert score_layers(config, draft) == (layer,)
    early = layer != draft.config.attention_layers[-1]
    assert lookahead_steps(config, draft) == (0 if early else 8)
    kind = score_kind(config, draft)
    assert kind.queries == (64 if early else 1) and kind.last_layer == (layer if early else None)
    assert score_kind(replace(config, tail_queries=5), draft).queries == 5


@pytest.mark.parametrize(
    "num_layers, every, layer", [(24, 4, 7), (32, 4, 11), (12, 4, 3), (8, 4, 3), (40, 4, 15), (8, 2, 3)]
)
def test_a_third_of_it_unless_asked_otherwise(num_layers, every, layer):
    draft = model_of(num_layers, every)
    assert score_layers(SpecPrefillConfig(), draft) == (layer,)
    assert lookahead_steps(SpecPrefillConfig(), draft) == 0
    assert score_kind(SpecPrefillConfig(), draft).queries == 64
    assert score_kind(SpecPrefillConfig(), draft) == score_kind(SpecPrefillConfig(score_depth=1 / 3), draft)


def test_of_one_attention_layer_nothing_changes():
    """The built-in draft: the same layer, look-ahead and programs as with all of it."""
    draft, auto, whole = model_of(4), SpecPrefillConfig(), SpecPrefillConfig(score_depth=1)
    assert score_layers(auto, draft) == (3,)
    assert lookahead_steps(auto, draft) == lookahead_steps(whole, draft) == 8
    assert score_kind(auto, draft) == score_kind(whole, draft)


def test_all_of_it():
    draft = model_of(24)
    for config in (SpecPrefillConfig(score_depth=1), SpecPrefillConfig.preset("fork")):
        assert score_layers(config, draft) == draft.config.attention_layers
        assert lookahead_steps(config, draft) == config.lookahead
    assert score_layers(SpecPrefillConfig(score_layers=(1, 2)), draft) == (1, 2), "refused where it is used"


@pytest.mark.parametrize("question, queries", [((), 32), (((250, 300),), 50), (((100, 300),), 32)])
def test_scores_are_the_rows_of_that_layer(load_model, question, queries):
    """The whole way, with the queries of a question at the end."""
    target = draft = load_model("mtp-b-q4km", kv_type="f32", max_context=2048)
    layer = draft.config.attention_layers[0]
    assert len(draft.config.attention_layers) > 1
    config = replace(SPARSE, score_depth=(layer + 1) / draft.config.num_hidden_layers)
    ids = np.random.Generator(np.random.SFC64(7)).integers(0, 256, 300).tolist()
    pair = SpecPrefill(target, draft, config)
    try:
        protected = Protected(question=Requests(question, question, question))
        found = pair.score(ids, protected=protected)
        capture, cache = AttentionCapture((layer,), range(-queries, 0)), draft.new_cache()
        draft.prefill(ids, cache=cache, capture=capture)
        cache.close()
        steps = [capture.pattern[layer][None, :, i] for i in range(queries)]
        wanted = importance_from_rows(steps, 300, config.pool_size)
        assert np.abs(found.importance - wanted).max() <= 2e-5 * wanted.max()  # float32 sums in another order
        assert found.lookahead_ms < found.score_ms
        assert pair.prefill(ids, protected=protected).report.settings["score_depth"] == config.score_depth
    finally:
        pair.close()
