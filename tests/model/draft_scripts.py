"""What the tests of decoding with drafts share: drafts that are right where a script says so, samplers, how a cache is
compared.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

from vkprefill import SamplingConfig, SpecDecodeConfig
from vkprefill.drafting.drafters import Drafter, Drafting
from vkprefill.engine.cache import Cache
from vkprefill.engine.model import Model
from vkprefill.generation.sampling import MAX_CANDIDATES, Sampler
from vkprefill.generation.steps import Timings, generate_step
from vkprefill.work import without_pauses

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
    steps = generate_step(model, prompt, cache, sampler, timings=timings, drafting=drafting, **more)
    return without_pauses(steps), timings


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


def run(model: Model, prompt: list[int], wanted: list[int], sampling: str, patterns, count: int, cache: Cache):
    """The first `count` tokens with scripted drafts, and what was drafted."""
    drafter = Scripted(wanted, len(prompt), patterns)
    steps, timings = steps_of(model, prompt, cache, sampler_of(model, SAMPLINGS[sampling]), drafter)
    tokens = list(islice(steps, count))
    steps.close()
    return tokens, drafter, timings
