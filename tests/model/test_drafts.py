"""Rounds of decoding with drafts: token for token the text of plain decoding, and bit for bit its caches, whatever is
drafted.
"""

from itertools import islice, product

import numpy as np
import pytest

import vkprefill
from tests.model.draft_scripts import (
    LENGTH,
    SAMPLINGS,
    Scripted,
    assert_same_cache,
    plain,
    run,
    sampler_of,
    steps_of,
)
from vkprefill import SamplingConfig, SpecDecodeConfig
from vkprefill.drafting.drafters import Drafting
from vkprefill.generation.steps import Timings, generate_step
from vkprefill.server.engine.logprobs import LogprobSampler
from vkprefill.work import without_pauses


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_all_patterns_of_four(tiny, prompt, answers, sampling):
    """Each of the 16 ways that four drafted tokens can be right or wrong, one round after the other."""
    prompt, wanted = prompt[:LENGTH], answers(prompt[:LENGTH], sampling)
    patterns = list(product((True, False), repeat=4))
    rights = [next((i for i, ok in enumerate(pattern) if not ok), 4) for pattern in patterns]
    count = 1 + sum(right + 1 for right in rights)
    cache = tiny.new_cache()
    tokens, drafter, timings = run(tiny, prompt, wanted, sampling, patterns, count, cache)
    assert tokens == wanted[:count]
    assert drafter.rounds == [(4, right) for right in rights]
    assert (timings.draft_n, timings.draft_n_accepted, timings.predicted_n) == (64, sum(rights), count)
    assert len(cache) == LENGTH + count - 1
    cache.close()


@pytest.mark.parametrize("pattern", list(product((True, False), repeat=4)), ids=lambda p: "".join("01"[ok] for ok in p))
def test_cache_after_each_pattern(tiny, prompt, answers, pattern):
    """Stopped after the round, the cache is that of plain decoding, bit for bit; so are the tokens that follow."""
    prompt, wanted = prompt[:LENGTH], answers(prompt[:LENGTH], "greedy, penalty")
    right = next((i for i, ok in enumerate(pattern) if not ok), 4)
    count = 4 + 1 + right  # after three tokens without drafts
    caches = [tiny.new_cache() for _ in range(2)]
    patterns = [(), (), (), pattern, *[()] * 20]
    tokens, drafter, _ = run(tiny, prompt, wanted, "greedy, penalty", patterns, count, caches[0])
    assert tokens == wanted[:count] and (4, right) in drafter.rounds
    steps, _ = steps_of(tiny, prompt, caches[1], sampler_of(tiny, SAMPLINGS["greedy, penalty"]))
    assert list(islice(steps, count)) == wanted[:count]
    assert_same_cache(tiny, *caches)
    for cache in caches:
        cache.close()


@pytest.mark.parametrize("drafted", range(1, 8))
@pytest.mark.parametrize("stop", [0, 1, 2, 5])
def test_stopped_inside_a_round(tiny, prompt, answers, drafted, stop):
    """Who takes no more tokens leaves a cache that never saw the drafts behind them."""
    prompt, wanted = prompt[:LENGTH], answers(prompt[:LENGTH], "sampled, penalty")
    caches = [tiny.new_cache() for _ in range(2)]
    sampler = sampler_of(tiny, SAMPLINGS["sampled, penalty"])
    drafter = Scripted(wanted, LENGTH, [(True,) * drafted] * 8)
    drafting = Drafting([drafter], SpecDecodeConfig("ngram", n_max=drafted, adaptive=False))
    steps = without_pauses(generate_step(tiny, prompt, caches[0], sampler, timings=Timings(), drafting=drafting))
    assert list(islice(steps, 2 + stop)) == wanted[: 2 + stop]
    plain_steps, _ = steps_of(tiny, prompt, caches[1], sampler_of(tiny, SAMPLINGS["sampled, penalty"]))
    assert list(islice(plain_steps, 2 + stop)) == wanted[: 2 + stop]
    assert_same_cache(tiny, *caches)
    for cache in caches:
        cache.close()


def test_other_caches_between_the_tokens_of_a_round(tiny, prompt, answers):
    """Two answers in turn, and other uses of the model: drafts that are lost so are drafted again."""
    prompts = prompt[:LENGTH], prompt[LENGTH : 2 * LENGTH]
    caches = [tiny.new_cache() for _ in prompts]
    wanted = [answers(tokens, "sampled, penalty") for tokens in prompts]
    steps = [
        steps_of(
            tiny,
            tokens,
            cache,
            sampler_of(tiny, SAMPLINGS["sampled, penalty"]),
            Scripted(answer, LENGTH, [(True,) * 4] * 40),
        )[0]
        for tokens, cache, answer in zip(prompts, caches, wanted, strict=True)
    ]
    got: list[list[int]] = [[], []]
    for i in range(24):
        for tokens, step in zip(got, steps, strict=True):
            tokens.append(next(step))
            if i % 5 == 4:
                tokens.append(next(step))
        if i % 7 == 0:
            tiny.logits([1, 2, 3])
        if i % 7 == 3:
            caches[0].snapshot().free()
    assert got == [answer[: len(got[0])] for answer in wanted]
    for cache in caches:
        cache.close()


def test_no_more_is_drafted_than_is_asked_for(tiny, prompt, answers):
    """Neither past the limit nor past the end of the context."""
    prompt, wanted = prompt[:LENGTH], answers(prompt[:LENGTH], "greedy")
    for context, limit in ((LENGTH + 9, None), (200, 10)):
        cache = tiny.new_cache(max_context=context)
        drafter = Scripted(wanted, LENGTH, [(True,) * 4] * 20)
        steps, timings = steps_of(tiny, prompt, cache, sampler_of(tiny, SAMPLINGS["greedy"]), drafter, limit=limit)
        assert list(islice(steps, 10)) == wanted[:10]
        assert drafter.rounds == [(4, 4), (3, 3)] and timings.draft_n == 7
        assert len(cache) == LENGTH + 9
        cache.close()


def test_short_drafts_are_dropped(tiny, prompt, answers):
    prompt, wanted = prompt[:LENGTH], answers(prompt[:LENGTH], "greedy")
    drafter = Scripted(wanted, LENGTH, [(True,) * n for n in (1, 2, 3, 4)] + [()] * 40)
    config = SpecDecodeConfig("ngram", n_max=4, n_min=3, adaptive=False)
    timings, cache = Timings(), tiny.new_cache()
    drafting = Drafting([drafter], config)
    sampler = sampler_of(tiny, SAMPLINGS["greedy"])
    steps = without_pauses(generate_step(tiny, prompt, cache, sampler, timings=timings, drafting=drafting))
    assert list(islice(steps, 20)) == wanted[:20] and timings.draft_n == timings.draft_n_accepted == 7
    cache.close()


def test_log_probabilities_are_those_of_plain_decoding(tiny, prompt, answers):
    """Read after each token, as the server does."""
    prompt, wanted = prompt[:LENGTH], answers(prompt[:LENGTH], "whole rows")
    found = []
    for drafter in (None, Scripted(wanted, LENGTH, [(True, True, False, True), (True,) * 4, (False,)] * 10)):
        config = SamplingConfig(**SAMPLINGS["whole rows"]).resolve(tiny.metadata, False)
        sampler, cache = LogprobSampler(config, 3), tiny.new_cache()
        steps, _ = steps_of(tiny, prompt, cache, sampler, drafter)
        found.append([(next(steps), sampler.chances) for _ in range(16)])
        cache.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["draft", "sample"])
def test_errors_in_a_round(tiny, prompt, answers, error, where):
    """They leave the cache as plain decoding would: at the tokens that were given out, or one further."""
    prompt, wanted = prompt[:LENGTH], answers(prompt[:LENGTH], "greedy")
    cache, sampler = tiny.new_cache(), sampler_of(tiny, SAMPLINGS["greedy"])
    drafter = Scripted(wanted, LENGTH, [(True,) * 4] * 20)
    steps, _ = steps_of(tiny, prompt, cache, sampler, drafter)
    assert list(islice(steps, 3)) == wanted[:3]

    def fail(*_: object) -> None:
        raise error("stop")

    setattr(*(drafter, "draft", fail) if where == "draft" else (sampler, "sample", fail))
    with pytest.raises(error, match="stop"):
        list(islice(steps, 5))
    known = len(cache) - LENGTH
    assert known == (5 if where == "draft" else 3) and cache.token_ids[LENGTH:] == wanted[:known]
    other = tiny.new_cache()
    tiny.extend(prompt, other)
    for token_id in wanted[:known]:
        tiny.decode(token_id, other)
    assert_same_cache(tiny, cache, other)
    cache.close()
    other.close()


def test_no_room_for_drafts(tiny, prompt):
    """Where the token has room in the cache's last page and the drafts would want another one, which there is not:
    decoding goes on without them, as far as it goes without.
    """
    tokens = (prompt * 2)[:252]
    wanted = plain(tiny, tokens, SAMPLINGS["greedy"], 20)
    cache = tiny.new_cache()
    drafter = Scripted(wanted, len(tokens), [(True,) * 4] * 20)
    steps, timings = steps_of(tiny, tokens, cache, sampler_of(tiny, SAMPLINGS["greedy"]), drafter)
    assert list(islice(steps, 2)) == wanted[:2]
    others = []
    while tiny.runner.pool.free_pages:
        others.append(tiny.new_cache())
        tiny.extend(prompt[:3], others[-1])
    assert list(islice(steps, 3)) == wanted[2:5] and (timings.draft_n, timings.draft_n_accepted) == (4, 1)
    with pytest.raises(vkprefill.OutOfMemoryError, match="KV cache"):
        next(steps)
    assert len(cache) == 256
    for one in (cache, *others):
        one.close()


@pytest.mark.parametrize("sampling", ["greedy", "whole rows"])
@pytest.mark.parametrize(("pattern", "reached"), [((True, True, False, True), False), ((True,) * 4, True)])
def test_only_rows_that_are_drawn_from_are_judged(tiny, prompt, answers, monkeypatch, sampling, pattern, reached):
    """What is not finite behind the first wrong draft is nothing; before it, it is an error of that token."""
    prompt, wanted = prompt[:LENGTH], answers(prompt[:LENGTH], sampling)
    cache, scratch, program = tiny.new_cache(), tiny.runner.scratch, tiny.runner.rows_program(5)
    steps, _ = steps_of(
        tiny, prompt, cache, sampler_of(tiny, SAMPLINGS[sampling]), Scripted(wanted, LENGTH, [pattern, *[()] * 9])
    )
    run = program.run

    def poisoned() -> None:
        run()
        scratch.logits.view()[3, 7] = np.nan
        scratch.candidates.view()[3, 0, 0] = np.float32(np.nan).view(np.uint32)

    monkeypatch.setattr(program, "run", poisoned)
    if not reached:
        assert list(islice(steps, 8)) == wanted[:8]
    else:
        assert list(islice(steps, 4)) == wanted[:4]
        with pytest.raises(vkprefill.VkPrefillError, match="NaN or infinity"):
            next(steps)
        assert len(cache) == LENGTH + 3
    cache.close()
