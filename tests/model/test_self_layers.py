"""One model scored by several of its layers in turn: each request names its own."""

from dataclasses import replace

import numpy as np
import pytest

import vkprefill
from tools.make_model import make_config, make_model
from vkprefill import SamplingConfig, Session, SpecPrefillConfig
from vkprefill.engine.model import Model
from vkprefill.generation.options import AnswerOptions
from vkprefill.generation.parts import GenerationPart
from vkprefill.server.engine.slots import Slots
from vkprefill.specprefill.plan import SparseRequest

GREEDY = SamplingConfig(temperature=0.0)
FIFTH = SpecPrefillConfig(
    scorer="self", select_mode="chunk", keep_ratio=0.2, break_even=False, protect_question=False, pool_size=1
)


@pytest.fixture(scope="module")
def eight_layers(tmp_path_factory) -> Model:
    """Attention in layers 1, 3, 5 and 7."""
    config = make_config("tiny", num_hidden_layers=8, full_attention_interval=2)
    path = make_model(tmp_path_factory.mktemp("models") / "eight.gguf", config, seed=3)
    with vkprefill.load(path, max_context=2048, kv_type="f32", prefill_chunk=64) as model:
        yield model


def by_layer(layer: int) -> SpecPrefillConfig:
    return replace(FIFTH, score_layer=layer)


def tokens(count: int, seed: int) -> list[int]:
    return np.random.Generator(np.random.SFC64(seed)).integers(0, 256, count).tolist()


def answer(parts: list[GenerationPart]) -> list[int]:
    return [part.token_id for part in parts if part.token_id is not None]


def alone(model: Model, ids: list[int], layer: int, parts: list[GenerationPart]) -> list[int]:
    """The answer to a prompt of which the later layers run what they have run of it here, at once."""
    report = parts[-1].specprefill
    assert report.reason.startswith(f"layer {layer} chose ")
    ranges = [*report.cached_ranges, *report.kept_ranges]
    spec = by_layer(layer)
    return vkprefill.generate(model, ids, spec=spec, kept_ranges=ranges, max_tokens=4, sampling=GREEDY).token_ids


def test_a_session_whose_turns_name_different_layers(eight_layers):
    """A cache that is pruned after another layer is gone on from only where nothing is left out yet."""
    session, ids = Session(eight_layers, None, by_layer(1)), tokens(300, 1)
    for layer in (1, 5, 3, 3):
        before = session.cache.split
        parts = list(session.stream_ids(ids, AnswerOptions(4, GREEDY, SparseRequest(config=by_layer(layer)))))
        cache, said = session.cache, answer(parts)
        assert cache.split == layer and len(cache.late_positions) < len(cache) == len(ids) + 3
        assert cache.positions == list(range(len(cache)))
        assert (len(parts[-1].specprefill.cached_ranges) > 1) == (before == layer)
        assert said == alone(eight_layers, ids, layer, parts)
        ids = ids + said + tokens(200, len(ids))
    session.close()


def test_conversations_of_a_server_by_different_layers(eight_layers):
    """Requests in turn, some of the same prompt."""
    slots, prompts = Slots(eight_layers, None, FIFTH), [tokens(300, 2), tokens(320, 3)]
    for number, layer in ((0, 1), (1, 5), (0, 5), (1, 3), (0, 3)):
        ids, asked = prompts[number], AnswerOptions(4, GREEDY, SparseRequest(config=by_layer(layer)))
        parts = list(slots.choose(ids, asked).stream_ids(ids, asked))
        assert answer(parts) == alone(eight_layers, ids, layer, parts)
    slots.close()
