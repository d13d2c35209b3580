"""What people do with a mixture as with a dense model: prompts that a dense draft or its own early layers score,
checked answers, conversations on a server.
"""

from dataclasses import replace

import numpy as np
import pytest

import vkprefill
from tests.model.sparse_requests import GREEDY, assert_split_logits
from vkprefill import SpecDecodeConfig, SpecPrefill, SpecPrefillConfig
from vkprefill.generation.options import AnswerOptions
from vkprefill.server.engine.slots import Slots
from vkprefill.specprefill.plan import SparseRequest

SELF = SpecPrefillConfig(
    scorer="self", select_mode="chunk", keep_ratio=0.2, chunk_size=8, protect_question=False, break_even=False
)
LIMIT = 12


@pytest.fixture(scope="module")
def model(load_model):
    """Attention layers 1 and 3 of 4, six experts of which a token takes two, a block with experts for drafts."""
    return load_model("moe-b-q4km", kv_type="f32", max_context=1024)


def tokens(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, count).tolist()


def test_its_early_layers_score(model):
    """What is kept goes on through the later ones, each token to the experts that these layers choose."""
    prompt, spec = tokens(3, 300), SpecPrefill(model, None, SELF)
    result = spec.prefill(prompt)
    assert result.status == "active" and result.report.reason.startswith("layer 1 chose ")
    assert result.cache.late_positions == result.kept.tolist()
    assert_split_logits(result, model, prompt)
    result.cache.close()
    spec.close()


@pytest.mark.parametrize("decode", ["none", "draft-mtp"])
@pytest.mark.parametrize(("name", "scorer"), [("moe-c-fused", "draft"), ("moe-b-q4km", "self")])
def test_checked_answers_are_the_dense_ones(load_model, tiny_draft, name, scorer, decode):
    """Whatever was kept, verified after the answer. Of the first model all sparse answers are wrong."""
    model, draft = load_model(name, kv_type="f32", max_context=1024), tiny_draft if scorer == "draft" else None
    config, found = replace(SELF, scorer=scorer, keep_ratio=0.1, check="wait", check_share=0), set()
    options = {"max_tokens": LIMIT, "sampling": GREEDY}
    for seed in range(3):
        prompt, drafts = tokens(seed, 200), SpecDecodeConfig(decode, adaptive=False)
        want = vkprefill.generate(model, prompt, **options)
        got = vkprefill.generate(model, prompt, draft=draft, spec=config, decode=drafts, **options)
        assert got.token_ids == want.token_ids and got.specprefill.status == "active"
        found.add(got.specprefill.check["status"])
    assert found == {"revised"} if draft else found <= {"equal", "revised"}


@pytest.mark.parametrize("config", [None, SELF], ids=["dense", "self"])
def test_conversations_of_a_server(load_model, config):
    """Three that share a memory of two: answers are those of a run alone, a further turn goes on from the last."""
    small = load_model("moe-c-fused" if config is None else "moe-b-q4km", kv_type="f32", max_context=768)
    prompts, sparse = (
        [tokens(seed, 300) for seed in range(3)],
        {"sparse": SparseRequest(config=config)} if config else {},
    )
    asked = AnswerOptions(3, GREEDY, mark_at=(290,), **sparse)
    want = [vkprefill.generate(small, ids, spec=config, max_tokens=3, sampling=GREEDY).token_ids for ids in prompts]
    slots = Slots(small, None, config)
    for turn in (0, 1, 2, 0):
        parts = list(slots.choose(prompts[turn], asked).stream_ids(prompts[turn], asked))
        assert [p.token_id for p in parts if p.token_id is not None] == want[turn]
    assert slots.figures()["evictions"] >= 1
    more = prompts[0] + want[0] + tokens(9, 40)
    parts = list(slots.choose(more, asked).stream_ids(more, asked))
    assert parts[-1].timings.cache_n >= 290
    slots.close()
