"""Who drafts the tokens of an answer, and what is kept of how well that went."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

from vkprefill.display import printable
from vkprefill.drafting.depth import Depth
from vkprefill.drafting.ngram import LEAST_ALONE, LEAST_BESIDE, NGramDrafter
from vkprefill.drafting.settings import AUTO, MTP, NGRAM, NONE, SpecDecodeConfig, check_config
from vkprefill.engine.cache import Cache
from vkprefill.engine.drafter import NO_BLOCK
from vkprefill.engine.model import Model
from vkprefill.errors import RequestError

NO_DRAFTS = SpecDecodeConfig(NONE)
MOST_KINDS = 8  # settings that a model's measurements are kept for


class Drafter(Protocol):
    """Guesses how a text goes on."""

    def draft(self, token_id: int, cache: Cache, count: int, p_min: float) -> list[int]:
        """At most `count` tokens after token_id, which comes after the cache's and was not run yet."""


class Drafting:
    """The drafts of one answer: of several drafters the first that has one counts. Without any: plain decoding.

    depth: how many tokens to draft; it outlives the answer. ends: tokens that nothing is drafted after.
    """

    def __init__(
        self,
        drafters: Sequence[Drafter] = (),
        config: SpecDecodeConfig = NO_DRAFTS,
        depth: Depth | None = None,
        ends: Collection[int] = (),
    ) -> None:
        self._drafters, self._config, self._ends = drafters, config, ends
        self._depth = depth or Depth(config.n_max, config.n_min, config.adaptive)

    def propose(self, token_id: int, cache: Cache, most: int) -> list[int]:
        """Up to `most` tokens that may follow token_id."""
        count = min(most, self._depth.choose())
        if count < max(1, self._config.n_min):
            return []
        for drafter in self._drafters:
            drafted = drafter.draft(token_id, cache, count, self._config.p_min)
            if len(drafted) >= max(1, self._config.n_min):
                end = next((i for i, token in enumerate(drafted, 1) if token in self._ends), None)
                return drafted[:end]
        return []

    def note(self, drafted: int, accepted: int, seconds: float) -> None:
        """How a round went, from asking for drafts to the model's results."""
        self._depth.note(drafted, accepted, seconds)


_depths: WeakKeyDictionary[Model, OrderedDict[SpecDecodeConfig, Depth]] = WeakKeyDictionary()


def depth_of(model: Model, config: SpecDecodeConfig) -> Depth:
    """What is known of a model with these settings: one answer goes on where another one has measured."""
    known = _depths.setdefault(model, OrderedDict())
    depth = known.pop(config, None) or Depth(config.n_max, config.n_min, config.adaptive)
    known[config] = depth
    if len(known) > MOST_KINDS:
        known.popitem(last=False)
    return depth


def check_drafts(model: Model, config: SpecDecodeConfig) -> tuple[str, ...]:
    """Where drafts come from, in order. RequestError for what is no SpecDecodeConfig, and where there is no block for
    the drafts asked for."""
    check_config(config)
    if MTP in config.sources and not model.has_mtp:
        raise RequestError(
            f"drafts of type {config.type}: {printable(model.path.name)} {NO_BLOCK}, or drafts of type {NGRAM}, "
            f"{AUTO} or {NONE}"
        )
    return (MTP,) if config.type == AUTO and model.has_mtp else config.sources


def drafting_for(model: Model, config: SpecDecodeConfig, prompt: Sequence[int], num_rows: int) -> Drafting:
    """Of an answer to a prompt, of which (or of what was left of it) the cache has num_rows tokens when it begins."""
    sources = check_drafts(model, config)
    if not sources:
        return Drafting()
    least = LEAST_ALONE if sources == (NGRAM,) else LEAST_BESIDE
    made = {NGRAM: lambda: NGramDrafter(prompt, num_rows, least), MTP: lambda: model.drafter(config.head_rows)}
    ends = model.tokenizer.eog_token_ids
    return Drafting([made[source]() for source in sources], config, depth_of(model, config), ends)
