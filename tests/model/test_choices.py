"""Where answers end, penalties and biases: as if drawn by hand from whole rows of logits, with drafts or without."""

import numpy as np
import pytest

import vkprefill
from tests.model.draft_scripts import NGRAM
from vkprefill import RequestError, SamplingConfig, SpecDecodeConfig
from vkprefill.generation.options import AnswerOptions
from vkprefill.generation.penalties import Penalties
from vkprefill.generation.session import Session

NONE = SpecDecodeConfig("none")
PROMPT = [5, 6, 7, 5, 6, 7, 5, 6, 7, 5, 6]


def answer(model, decode=NONE, prompt=PROMPT, count=24, sampling=None, **options):
    session = Session(model)
    asked = AnswerOptions(count, SamplingConfig(**(sampling or {"temperature": 0.0})), decode=decode, **options)
    ids = [part.token_id for part in session.stream_ids(prompt, asked) if part.token_id is not None]
    session.close()
    return ids


@pytest.mark.parametrize(
    "settings",
    [
        {"frequency_penalty": 1.5},
        {"repeat_penalty": 3.0, "repeat_last_n": 8, "presence_penalty": 0.5},
        {"logit_bias": {65: 100, 66: 99.5}, "frequency_penalty": 2},
    ],
)
def test_greedy_answers_are_those_of_whole_rows(tiny, settings):
    cache, by_hand = tiny.new_cache(), []
    config = SamplingConfig(temperature=0.0, **settings).resolve(tiny.metadata, False)
    penalties = Penalties(config, PROMPT, tiny.config.vocab_size)
    logits = tiny.prefill(PROMPT, cache=cache)
    for _ in range(24):
        penalties.apply(logits)
        by_hand.append(int(logits.argmax()))
        penalties.note(by_hand[-1])
        logits = tiny.decode(by_hand[-1], cache).copy()
    cache.close()
    ends = tiny.tokenizer.eog_token_ids
    by_hand = by_hand[: next((i for i, token in enumerate(by_hand) if token in ends), None)]
    for decode in (NONE, NGRAM):
        assert answer(tiny, decode, sampling={"temperature": 0.0, **settings}) == by_hand
    assert by_hand != answer(tiny)


@pytest.mark.parametrize("decode", [NONE, NGRAM], ids=["plain", "drafts"])
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 1.0, "top_k": 0, "seed": 1}])
def test_ends(tiny, decode, sampling):
    """A bias makes the end come at once, unless it may not."""
    end = min(tiny.tokenizer.eog_token_ids)
    eager = {**sampling, "logit_bias": {token: 100 for token in tiny.tokenizer.eog_token_ids}}
    assert answer(tiny, decode, sampling=eager) == []
    assert len(answer(tiny, decode, sampling=eager, min_tokens=5)) == 5
    assert len(answer(tiny, decode, sampling=eager, ignore_eos=True)) == 24
    biased = {**sampling, "logit_bias": {65: 100}}
    assert answer(tiny, decode, sampling=biased, stop_token_ids=(65,)) == []
    assert len(answer(tiny, decode, sampling=biased, stop_token_ids=(65,), min_tokens=3)) == 3
    assert end not in answer(tiny, decode, sampling=eager, ignore_eos=True)
    assert answer(tiny, decode, sampling=biased, stop_token_ids=(65,), ignore_eos=True) == []
    assert answer(tiny, decode, sampling=eager, stop_token_ids=(*tiny.tokenizer.eog_token_ids,), ignore_eos=True) == []


@pytest.mark.parametrize("decode", [NONE, NGRAM], ids=["plain", "drafts"])
@pytest.mark.parametrize("budget", [0, 1, 6])
def test_a_budget_of_thinking_tokens(tiny, decode, budget):
    opened, closed = (tiny.tokenizer.special_tokens[tag] for tag in ("<think>", "</think>"))
    prompt = [*PROMPT, opened]
    held = {"temperature": 0.0, "logit_bias": {closed: -100}}
    ids = answer(tiny, decode, prompt, sampling=held, ignore_eos=True, thinking_tokens=budget)
    assert ids.index(closed) == budget and ids.count(closed) == 1
    free = answer(tiny, decode, prompt, sampling=held, ignore_eos=True)
    assert ids[:budget] == free[:budget] and closed not in free
    assert answer(tiny, decode, thinking_tokens=budget) == answer(tiny, decode), "it does not think"


def test_what_is_refused(tiny):
    for options, message in (
        ({"min_tokens": -1}, "min_tokens: found -1"),
        ({"thinking_tokens": 1.5}, "thinking_tokens: found 1.5"),
    ):
        with pytest.raises(RequestError, match=f"^{message}"):
            AnswerOptions(**options)
    with pytest.raises(RequestError, match="^logit_bias: found token id 100000, wanted 0 to"):
        vkprefill.generate(tiny, PROMPT, sampling=SamplingConfig(temperature=0.0, logit_bias={100_000: 1}))
    assert np.isfinite(tiny.prefill(PROMPT)).all()
