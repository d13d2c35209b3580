"""Importance from the target's own early layers, which have to read the prompt anyway.

importance[t] = mean over queries (max over heads (pool(row)[t])), rows of one layer, the queries the last tokens of the
prompt. The layers after it run what is kept (engine/split.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkprefill.display import printable
from vkprefill.engine.cache import Cache
from vkprefill.engine.model import Model
from vkprefill.engine.restored import restored_on_error
from vkprefill.engine.runner import PrefillProgress
from vkprefill.errors import ContextLengthError, RequestError
from vkprefill.gguf.config import ModelConfig
from vkprefill.rounding import round_up
from vkprefill.specprefill.guards import BreakEven
from vkprefill.specprefill.protection import TAIL_QUERIES
from vkprefill.specprefill.score_programs import ProgramStore, ScoreKind
from vkprefill.specprefill.scorer import Importance
from vkprefill.specprefill.settings import NOPE, SpecPrefillConfig
from vkprefill.vulkan.program import Program
from vkprefill.work import Spent, Work, whole

QUERIES_STEP = 32  # that programs are recorded for: a longer question needs no new ones


def scoring_layers(model: ModelConfig) -> list[int]:
    """The full-attention layers that can score: others come after them."""
    return [layer for layer in model.attention_layers if layer < model.num_hidden_layers - 1]


def scoring_layer(config: SpecPrefillConfig, model: ModelConfig) -> int:
    """The full-attention layer that scores: score_layer, or the one nearest to a third of the layers. RequestError
    where it is none, or nothing comes after it.
    """
    possible = scoring_layers(model)
    if not possible:
        raise RequestError(f"scorer self: {printable(model.name)} has no full-attention layer before its last")
    if config.score_layer is None:
        return min(possible, key=lambda layer: abs(layer - model.num_hidden_layers / 3))
    if config.score_layer not in possible:
        raise RequestError(
            f"score_layer: found {config.score_layer}, wanted one of {', '.join(map(str, possible))}, a full-attention "
            f"layer of {printable(model.name)} before its last"
        )
    return config.score_layer


def own_break_even(
    new_tokens: int, expected_kept: float, config: SpecPrefillConfig, model: ModelConfig, tokens_per_s: float
) -> BreakEven:
    """Whether leaving tokens out of the late layers saves more than choosing them costs.

    scoring = queries / speed, since the rows of so many tokens in one layer are less work than their prefill; saving =
    (new_tokens - expected_kept) x share of the layers after the scoring one / speed: the others have to run anyway.
    """
    late = 1 - (scoring_layer(config, model) + 1) / model.num_hidden_layers
    scoring_s = min(config.tail_queries or TAIL_QUERIES, new_tokens) / tokens_per_s
    saving_s = (new_tokens - expected_kept) * late / tokens_per_s
    return BreakEven(saving_s > scoring_s * config.break_even_safety, scoring_s, saving_s)


class SelfScorer:
    """Reads prompts with a model's early layers; programs are kept with the model."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._store: ProgramStore | None = None  # until a prompt is scored

    def score(self, token_ids: Sequence[int], config: SpecPrefillConfig, cache: Cache, **options: object) -> Importance:
        """All slices of `score_in_slices`, which says what the options are."""
        return whole(self.score_in_slices(token_ids, config, cache, **options))

    def score_in_slices(
        self,
        token_ids: Sequence[int],
        config: SpecPrefillConfig,
        cache: Cache,
        *,
        queries: int = TAIL_QUERIES,
        cached_n: int = 0,
        mark_at: Sequence[int] = (),
        progress: PrefillProgress | None = None,
    ) -> Work[Importance]:
        """Read a prompt whose first cached_n tokens the cache stands for, and the importance of all that it has; of
        others 0. The cache is ahead then: what is kept of the prompt is to be prefilled.

        queries: last tokens of the prompt whose rows count; mark_at: rising lengths of the prompt where snapshots may
        be wanted. An exception leaves the cache as it was: RequestError for a layer that cannot score, VkPrefillError
        for NaN or infinity.
        """
        run, spent = self.model.runner, Spent()
        layer, held, new = scoring_layer(config, self.model.config), len(cache), len(token_ids) - cached_n
        queries = min(queries, new)
        most = round_up(queries, QUERIES_STEP)
        nope = config.rows == NOPE
        kind = ScoreKind((layer,), False, most, config.pool_size, whole=True, before_rotary=nope)
        if self._store is None:
            self._store = ProgramStore.of(run)
            self._store.users.add(self)
        with run.turn, self._store.borrow(kind, held + new) as programs, restored_on_error(cache):
            with spent:
                programs.start(held + new, np.array([*cache.positions, *range(cached_n, len(token_ids))]))
            first = new - queries

            def program(begin: int, count: int) -> Program:
                return programs.prefill(range(min(count, max(first - begin, 0)), count))

            stops = range(held + first + programs.most, held + new, programs.most)
            read = self._read(token_ids, layer, cache, cached_n, mark_at, progress, stops=stops, program_for=program)
            yield from spent.on(read)
            with spent:
                values = run.finite(programs.total() / np.float32(queries), f"importance by {self.model.path.name}")
        of_prompt = np.zeros(len(token_ids), np.float32)
        of_prompt[cache.positions] = values
        return Importance(of_prompt, queries, cached_n, spent.ms, 0.0)

    def read_in_slices(
        self,
        token_ids: Sequence[int],
        config: SpecPrefillConfig,
        cache: Cache,
        *,
        cached_n: int = 0,
        mark_at: Sequence[int] = (),
        progress: PrefillProgress | None = None,
    ) -> Work[None]:
        """As score_in_slices, without scores: for a choice that was made elsewhere."""
        layer = scoring_layer(config, self.model.config)
        with restored_on_error(cache):
            yield from self._read(token_ids, layer, cache, cached_n, mark_at, progress)

    def _read(
        self,
        token_ids: Sequence[int],
        layer: int,
        cache: Cache,
        cached_n: int,
        mark_at: Sequence[int],
        progress: PrefillProgress | None,
        **runs: object,
    ) -> Work[None]:
        num_rows = len(cache) + len(token_ids) - cached_n
        if num_rows > cache.max_context:
            raise ContextLengthError.of_prompt(num_rows, cache.max_context)
        marks = [len(cache) + place - cached_n for place in mark_at if cached_n < place < len(token_ids)]
        where = np.arange(cached_n, len(token_ids))
        split = self.model.runner.split
        yield from split.read_in_slices(
            token_ids[cached_n:], where, cache, layer, marks=marks, progress=progress, **runs
        )

    def close(self, *, keep_programs: bool = False) -> None:
        """See Scorer.close."""
        if self._store is not None:
            self._store.leave(self, keep=keep_programs)
            self._store = None
