"""Decoding with drafts of the multi-token-prediction block: llama.cpp's rounds, and the text without drafts."""

from itertools import islice

import numpy as np
import pytest

import vkprefill
from tests.reference.fixtures import MTP_FIXTURES, load_rounds, model_path
from vkprefill import SamplingConfig, Session, SpecDecodeConfig
from vkprefill.drafting.drafters import Drafting, check_drafts
from vkprefill.engine.cache import Cache
from vkprefill.engine.model import Model
from vkprefill.generation.options import AnswerOptions
from vkprefill.generation.sampling import Sampler
from vkprefill.generation.steps import Timings, generate_step
from vkprefill.work import without_pauses

GREEDY = SamplingConfig(temperature=0.0)
SAMPLED = SamplingConfig(temperature=1.3, top_k=20, presence_penalty=1.0, seed=3)
WHOLE_ROWS = SamplingConfig(temperature=0.5, top_k=0, top_p=0.9, presence_penalty=0.5, seed=4)
KINDS = [
    SpecDecodeConfig("draft-mtp", n_max=1, adaptive=False),
    SpecDecodeConfig("draft-mtp", n_max=4, adaptive=False, head_rows=0),
    SpecDecodeConfig("draft-mtp", n_max=7, adaptive=False, head_rows=64),
    SpecDecodeConfig("draft-mtp,ngram", n_max=3, p_min=0.1, adaptive=False),
    SpecDecodeConfig(),
]


@pytest.fixture(scope="module")
def often_right(load_model) -> Model:
    """Its drafts are right every other time."""
    return load_model("mtp-b-q4km", kv_type="f32")


class Noted:
    """A model's drafts, written down: (last token, its position, the drafts)."""

    def __init__(self, model: Model) -> None:
        self._drafter, self.rounds = model.drafter(), []

    def draft(self, token_id: int, cache: Cache, count: int, p_min: float) -> list[int]:
        drafted = self._drafter.draft(token_id, cache, count, p_min)
        self.rounds.append([token_id, cache.next_position, *drafted])
        return drafted


@pytest.mark.parametrize("name", MTP_FIXTURES)
def test_rounds_of_llama_cpp(load_model, name):
    """The same drafts, of which the same are accepted, and the same text; what its plain decoding gives."""
    model, spec = load_model(name, kv_type="f32"), load_rounds(name)
    wanted, text = spec.rounds.tolist(), spec.text.tolist()
    n = len(wanted[0]) - 3
    cache, drafter, timings = model.new_cache(), Noted(model), Timings()
    drafting = Drafting([drafter], SpecDecodeConfig("draft-mtp", n_max=n, adaptive=False))
    sampler = Sampler(GREEDY.resolve(model.metadata, False))
    steps = generate_step(model, spec.prompt, cache, sampler, timings=timings, drafting=drafting)
    assert list(islice(without_pauses(steps), len(text))) == text == spec.plain.tolist()
    assert drafter.rounds == [[token, position, *drafts] for token, position, _, *drafts in wanted]
    assert timings.draft_n == n * len(wanted)
    assert timings.draft_n_accepted == sum(accepted for _, _, accepted, *_ in wanted)
    cache.close()


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED, WHOLE_ROWS], ids=["greedy", "sampled", "whole rows"])
@pytest.mark.parametrize("name", MTP_FIXTURES)
def test_the_text_is_that_of_plain_decoding(load_model, prompt, name, sampling):
    model = load_model(name, kv_type="f32")
    plain = vkprefill.generate(model, prompt[:40], max_tokens=50, sampling=sampling, decode=SpecDecodeConfig("none"))
    accepted = 0
    for decode in KINDS:
        found = vkprefill.generate(model, prompt[:40], max_tokens=50, sampling=sampling, decode=decode)
        assert (found.token_ids, found.finish_reason) == (plain.token_ids, plain.finish_reason)
        assert found.timings.draft_n > 0 or decode.adaptive
        accepted += found.timings.draft_n_accepted
    assert accepted > (4 if sampling is WHOLE_ROWS else 20) or name != "mtp-b-q4km"


def test_over_gaps(often_right, prompt):
    """After a sparse prefill the block has the kept tokens only."""
    ranges = [(0, 16), (40, 60), (100, 130)]
    found = [
        vkprefill.generate(
            often_right,
            prompt[:130],
            kept_ranges=ranges,
            max_tokens=40,
            sampling=SAMPLED,
            decode=SpecDecodeConfig(kind),
        )
        for kind in ("none", "draft-mtp", "draft-mtp,ngram")
    ]
    assert found[0].token_ids == found[1].token_ids == found[2].token_ids
    assert found[1].timings.draft_n_accepted > 0 and found[1].specprefill.status == "active"


def test_drafts_go_on_over_turns(often_right, prompt):
    """Turns, marks and another conversation between them: the block's keys and its waiting row come back with the
    state, so the drafts are those of a run without breaks.
    """
    decode = SpecDecodeConfig("draft-mtp", adaptive=False)
    model, counts, texts = often_right, [], []
    for interrupted in (False, True):
        cache, drafter, timings = model.new_cache(), Noted(model), Timings()
        sampler = Sampler(GREEDY.resolve(model.metadata, False))
        steps = without_pauses(
            generate_step(model, prompt[:40], cache, sampler, timings=timings, drafting=Drafting([drafter], decode))
        )
        tokens = []
        for i in range(40):
            tokens.append(next(steps))
            if interrupted and i % 4 == 0:
                snapshot = cache.snapshot(on_host=i % 8 == 0)
                model.prefill(prompt[100:110])
                cache.restore(snapshot)
        texts.append(tokens)
        if not interrupted:
            known = {place: drafts for _, place, *drafts in drafter.rounds}
        else:
            counts = [drafts == known[place] for _, place, *drafts in drafter.rounds if place in known]
        cache.close()
    assert texts[0] == texts[1] and len(counts) > 8 and all(counts)


def test_sessions(often_right, prompt):
    runs = []
    for kind in ("none", "draft-mtp"):
        decode = SpecDecodeConfig(kind)
        session = Session(often_right, decode=decode)
        ids, found = prompt[:30], []
        for turn in range(3):
            answer = [part.token_id for part in session.stream_ids(ids, AnswerOptions(12, SAMPLED, decode=decode))]
            found.append((answer, list(session.prompt), session.cache.positions))
            ids = [*session.prompt, *prompt[40 + turn : 50 + turn]]
        runs.append(found)
        session.close()
    assert runs[0] == runs[1]


def test_without_the_block(prompt):
    """Loaded without it the file is as any other: auto drafts nothing, and who asks for the block is told."""
    with vkprefill.load(model_path("mtp-b-q4km"), max_context=512, mtp=None) as model:
        assert check_drafts(model, SpecDecodeConfig()) == ()
        assert vkprefill.generate(model, prompt[:9], max_tokens=4, sampling=GREEDY).timings.draft_n == 0
        with pytest.raises(vkprefill.RequestError, match="without a multi-token-prediction block"):
            vkprefill.generate(model, prompt[:9], decode=SpecDecodeConfig("draft-mtp"))


def test_the_cache_is_that_of_plain_decoding(often_right, prompt):
    """Bit for bit, the block's keys, values and waiting row too: the drafts and logits that follow show them."""
    states = []
    for kind in ("none", "draft-mtp"):
        cache, timings = often_right.new_cache(), Timings()
        drafting = Drafting([often_right.drafter()], SpecDecodeConfig(kind, adaptive=False)) if kind != "none" else None
        sampler = Sampler(GREEDY.resolve(often_right.metadata, False))
        steps = without_pauses(
            generate_step(often_right, prompt[:40], cache, sampler, timings=timings, drafting=drafting)
        )
        tokens = list(islice(steps, 30))
        snapshot = cache.snapshot(on_host=True)
        drafts = often_right.drafter(0).draft(tokens[-1], cache, 4)
        logits = often_right.decode(tokens[-1], cache)
        states.append((tokens, cache.token_ids, snapshot.state.tobytes(), drafts, logits.tobytes()))
        cache.close()
    assert states[0] == states[1]
    assert np.isfinite(np.frombuffer(states[0][-1], np.float32)).all()
