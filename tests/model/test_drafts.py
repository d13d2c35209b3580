"""Decoding with drafts: token for token the text of plain decoding, and bit for bit its caches, whatever is drafted."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, product

import numpy as np
import pytest

import vkprefill
from tests.model.sparse_requests import GREEDY, PROMPTS
from tests.prompts import EACH
from vkprefill import SamplingConfig, Session, SpecDecodeConfig
from vkprefill.drafting.drafters import Drafter, Drafting, depth_of
from vkprefill.drafting.ngram import NGramDrafter
from vkprefill.engine.cache import Cache
from vkprefill.engine.model import Model
from vkprefill.generation.options import AnswerOptions
from vkprefill.generation.sampling import MAX_CANDIDATES, Sampler
from vkprefill.generation.steps import Timings, generate_step
from vkprefill.server.engine.logprobs import LogprobSampler

LENGTH = 40  # of the prompt
NGRAM = SpecDecodeConfig("ngram", n_max=4, adaptive=False)
SAMPLINGS = {
    "greedy": {"temperature": 0.0},
    "greedy, penalty": {"temperature": 0.0, "presence_penalty": 2.0},
    "sampled": {"temperature": 1.5, "top_k": 20, "presence_penalty": 0.0, "seed": 3},
    "sampled, penalty": {"temperature": 1.2, "top_k": MAX_CANDIDATES, "presence_penalty": 1.5, "seed": 4},
    "whole rows": {"temperature": 1.0, "top_k": 0, "top_p": 0.9, "presence_penalty": 1.5, "seed": 5},
}


class Scripted:
    """Drafts that are right where a pattern says so: `patterns` for one round after another, `answer`: what comes."""

    def __init__(self, answer: Sequence[int], first: int, patterns: Iterable[Sequence[bool]]) -> None:
        self._answer, self._first, self._patterns = answer, first, iter(patterns)
        self.rounds: list[tuple[int, int]] = []  # (drafted, right ones before the first wrong one)

    def draft(self, token_id: int, cache: Cache, count: int, p_min: float) -> list[int]:
        known = len(cache) + 1 - self._first  # tokens of the answer, with token_id
        assert self._answer[known - 1] == token_id, "asked at another place than the answer is at"
        pattern = next(self._patterns)[:count]
        coming = self._answer[known : known + len(pattern)]
        drafted = [token if right else (token + 1) % 256 for token, right in zip(coming, pattern, strict=False)]
        right = next((i for i, ok in enumerate(pattern[: len(drafted)]) if not ok), len(drafted))
        self.rounds.append((len(drafted), right))
        return drafted


def always(most: int = 4) -> SpecDecodeConfig:
    return SpecDecodeConfig("ngram", n_max=most, adaptive=False)


def sampler_of(model: Model, settings: dict[str, object]) -> Sampler:
    return Sampler(SamplingConfig(**settings).resolve(model.metadata, False))


def steps_of(
    model: Model, prompt: Sequence[int], cache: Cache, sampler: Sampler, drafter: Drafter | None = None, **more: object
) -> tuple[Iterator[int], Timings]:
    timings = Timings()
    drafting = Drafting([drafter], always()) if drafter else None
    return generate_step(model, prompt, cache, sampler, timings=timings, drafting=drafting, **more), timings


def plain(model: Model, prompt: Sequence[int], settings: dict[str, object], count: int = 60) -> list[int]:
    cache = model.new_cache()
    tokens = list(islice(steps_of(model, prompt, cache, sampler_of(model, settings))[0], count))
    cache.close()
    return tokens


def assert_same_cache(model: Model, cache: Cache, other: Cache) -> None:
    """Tokens, positions, states, and what a further token makes of keys and values."""
    assert (cache.token_ids, cache.positions, cache.next_position) == (
        other.token_ids,
        other.positions,
        other.next_position,
    )
    states = []
    for one in (cache, other):
        snapshot = one.snapshot(on_host=True)
        states.append(snapshot.state.view(np.uint32).copy())
        snapshot.free()
    np.testing.assert_array_equal(*states)
    logits = [model.decode(7, one).view(np.uint32) for one in (cache, other)]
    np.testing.assert_array_equal(*logits)


@pytest.fixture(scope="module")
def answers(tiny) -> Callable[[Sequence[int], str], list[int]]:
    """The plain answers to a prompt, made once."""
    known: dict[tuple[tuple[int, ...], str], list[int]] = {}

    def of(prompt: Sequence[int], sampling: str) -> list[int]:
        key = tuple(prompt), sampling
        if key not in known:
            known[key] = plain(tiny, prompt, SAMPLINGS[sampling])
        return known[key]

    return of


def run(model: Model, prompt: list[int], wanted: list[int], sampling: str, patterns, count: int, cache: Cache):
    """The first `count` tokens with scripted drafts, and what was drafted."""
    drafter = Scripted(wanted, len(prompt), patterns)
    steps, timings = steps_of(model, prompt, cache, sampler_of(model, SAMPLINGS[sampling]), drafter)
    tokens = list(islice(steps, count))
    steps.close()
    return tokens, drafter, timings


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
    steps = generate_step(tiny, prompt, caches[0], sampler, timings=Timings(), drafting=drafting)
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
    steps = generate_step(tiny, prompt, cache, sampler, timings=timings, drafting=drafting)
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
        found.append([(next(steps), sampler.last) for _ in range(16)])
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


# -- by lookup, and through the public interface -----------------------------------------------------------------------


def hinted(model: Model, prompt: list[int], settings: SamplingConfig) -> tuple[list[int], list[list[int]]]:
    """(a prompt that begins with the answer to its rest, the ranges to keep, which leave the answer out).

    Random models do not repeat themselves; so all that there is to look up lies in what a sparse prefill dropped.
    """
    ranges = [[60, 60 + LENGTH]]
    filled = [0] * 60 + prompt[:LENGTH]
    answer = vkprefill.generate(model, filled, kept_ranges=ranges, max_tokens=60, sampling=settings).token_ids
    return answer + filled[len(answer) :], ranges


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_lookup_in_what_a_sparse_prefill_dropped(tiny, prompt, sampling):
    settings = SamplingConfig(**SAMPLINGS[sampling])
    prompt, ranges = hinted(tiny, prompt, settings)
    found = [
        vkprefill.generate(tiny, prompt, kept_ranges=ranges, max_tokens=50, sampling=settings, decode=decode)
        for decode in (SpecDecodeConfig("none"), NGRAM, SpecDecodeConfig("ngram", n_max=7))
    ]
    texts = [(one.token_ids, one.text, one.finish_reason, one.timings.predicted_n) for one in found]
    assert texts[0] == texts[1] == texts[2]
    drafts = [(one.timings.draft_n, one.timings.draft_n_accepted) for one in found]
    assert drafts[0] == (0, 0) and drafts[1][1] >= 25 and drafts[1][1] <= drafts[1][0]


def test_fewer_runs_than_tokens(tiny, prompt, monkeypatch):
    """What drafts are for: here each run gives more than two tokens on average."""
    prompt, ranges = hinted(tiny, prompt, GREEDY)
    runs = []
    run_rows = Model.run_rows
    monkeypatch.setattr(Model, "run_rows", lambda self, ids, *more: runs.append(len(ids)) or run_rows(self, ids, *more))
    found = vkprefill.generate(tiny, prompt, kept_ranges=ranges, max_tokens=50, sampling=GREEDY, decode=NGRAM)
    assert len(found.token_ids) == 50 and len(runs) < 25 and max(runs) == 5
    assert found.timings.draft_n == sum(runs) - len(runs)


@pytest.mark.parametrize(
    "sampling", [GREEDY, SamplingConfig(temperature=1.0, presence_penalty=1.0, seed=6)], ids=["greedy", "sampled"]
)
@pytest.mark.parametrize("case", EACH)
def test_answers_of_the_built_in_model(built_in, case, sampling):
    """With an end of the answer, also where it was drafted: nothing after it is run."""
    plain, drafted = (
        vkprefill.generate(built_in, case.messages, max_tokens=48, sampling=sampling, decode=decode)
        for decode in (SpecDecodeConfig("none"), NGRAM)
    )
    assert (drafted.text, drafted.token_ids, drafted.finish_reason) == (
        plain.text,
        plain.token_ids,
        plain.finish_reason,
    )
    assert drafted.timings.predicted_n == plain.timings.predicted_n


def test_over_a_scored_prefill(built_in, built_in_draft):
    """The built-in pair copies its answers out of the prompt."""
    spec = vkprefill.SpecPrefillConfig(min_tokens=0, break_even=False)
    case = max(PROMPTS[:20], key=lambda case: case["n_tokens"])
    results = [
        vkprefill.generate(built_in, case["user"], draft=built_in_draft, spec=spec, decode=SpecDecodeConfig(kind))
        for kind in ("none", "ngram")
    ]
    assert results[0].text == results[1].text == case["answer"]
    assert results[1].specprefill.status == "active" and results[1].timings.draft_n_accepted > 0


def test_sessions(built_in):
    """Turns with drafts are the turns without, with the same marks to go on from."""
    runs = []
    for decode in (SpecDecodeConfig("none"), NGRAM):
        session, messages, found = Session(built_in, decode=decode), [], []
        for question in (PROMPTS[0]["user"], "And once more?", "Which pet does Robert keep?"):
            messages.append({"role": "user", "content": question})
            answer = session.generate(messages, max_tokens=8, sampling=GREEDY)
            messages.append({"role": "assistant", "content": answer.text})
            found.append((answer.token_ids, answer.timings.cache_n, answer.timings.prompt_n, list(session.prompt)))
        runs.append(found)
        session.close()
    assert runs[0] == runs[1]


def test_an_answer_that_is_dropped_inside_a_round(tiny, prompt, answers, monkeypatch):
    """The next turn goes on from what was given out."""
    prompt, wanted = prompt[:LENGTH], answers(prompt[:LENGTH], "greedy")
    kept = []
    for patterns in ([()] * 40, [(True,) * 4] * 40):
        drafting = Drafting([Scripted(wanted, LENGTH, patterns)], always())
        monkeypatch.setattr("vkprefill.generation.generate.drafting_for", lambda *_, made=drafting: made)
        session = Session(tiny)
        stream = session.stream_ids(prompt, AnswerOptions(30, GREEDY))
        assert [next(stream).token_id for _ in range(9)] == wanted[:9]
        stream.close()
        marks = session.find([*session.prompt, 1], AnswerOptions())
        kept.append((list(session.prompt), session.cache.token_ids, session.cache.positions, marks.length))
        session.close()
    assert kept[0] == kept[1] and kept[0][0] == prompt + wanted[:8]


@pytest.mark.parametrize("kind", ["draft-mtp", "draft-mtp,ngram"])
def test_a_file_without_a_block(tiny, kind):
    decode = SpecDecodeConfig(kind)
    with pytest.raises(
        vkprefill.RequestError,
        match=f"^drafts of type {kind}: .* was loaded without a multi-token-prediction block; wanted",
    ):
        vkprefill.generate(tiny, "x", max_tokens=1, decode=decode)


def test_settings_of_another_kind(tiny):
    with pytest.raises(vkprefill.RequestError, match="^decode: found str, wanted SpecDecodeConfig"):
        vkprefill.generate(tiny, "x", max_tokens=1, decode="ngram")


def test_what_was_measured_outlives_an_answer(built_in):
    """The same settings, the same measurements; others begin anew."""
    first = depth_of(built_in, SpecDecodeConfig("ngram"))
    assert depth_of(built_in, SpecDecodeConfig("ngram")) is first
    assert depth_of(built_in, SpecDecodeConfig("ngram", n_max=2)) is not first
    for n in range(20):
        depth_of(built_in, SpecDecodeConfig("ngram", p_min=n / 20))
    assert depth_of(built_in, SpecDecodeConfig("ngram")) is not first, "only some are kept"


def test_drafters_know_the_whole_prompt(tiny, prompt, monkeypatch):
    seen = []
    made = NGramDrafter.__init__
    monkeypatch.setattr(
        NGramDrafter,
        "__init__",
        lambda self, ids, rows, least: seen.append((list(ids), rows)) or made(self, ids, rows, least),
    )
    vkprefill.generate(tiny, prompt[:30], kept_ranges=[(0, 8), (20, 30)], max_tokens=2, decode=NGRAM)
    assert seen == [(prompt[:30], 18)]
