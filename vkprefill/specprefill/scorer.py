"""Which prompt tokens matter to the draft: importance from its softmax rows, reduced on the device.

importance[t] = mean over steps (max over layers (max over heads (pool(row)[t])))   (Liu, Chen & Zhang 2025, arXiv
2502.02789, section 3)

Steps are the last prompt token and greedily decoded look-ahead tokens, or last prompt tokens where tail_queries are set
or only early layers are scored; then the draft stops after the last scored layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from vkprefill.engine.capture import checked_layers
from vkprefill.engine.model import Model
from vkprefill.engine.prompt_cache import Mark, PromptCache
from vkprefill.engine.prompt_store import PromptStore
from vkprefill.engine.runner import PrefillProgress
from vkprefill.engine.step_input import Best
from vkprefill.errors import RequestError, VkPrefillError
from vkprefill.specprefill.protection import MOST_QUERIES, TAIL_QUERIES
from vkprefill.specprefill.score_programs import ProgramStore, ScoreKind, ScorePrograms
from vkprefill.specprefill.selection import windows
from vkprefill.specprefill.settings import AUTO_SCORE_DEPTH, NOPE, SpecPrefillConfig
from vkprefill.vulkan.program import Program
from vkprefill.work import Pause, Spent, Work, whole


@dataclass(frozen=True)
class Importance:
    """values: float32 [T], higher = keep; num_steps: query rows averaged; cached_n: tokens the draft had from an
    earlier call.
    """

    values: np.ndarray
    num_steps: int
    cached_n: int
    score_ms: float
    lookahead_ms: float


class Scorer:
    """Scores prompts with a draft model. Keeps the draft's cache, of the last prompt or of all that `conversations`
    remembers, so that a further turn runs only its new tokens.
    """

    def __init__(self, draft: Model, conversations: PromptStore | None = None) -> None:
        self.draft = draft
        self._conversations = conversations
        self._prompts = PromptCache(draft.new_cache())  # with conversations: the one in use
        self._store = ProgramStore.of(draft.runner)
        self._store.users.add(self)

    def score(self, token_ids: Sequence[int], config: SpecPrefillConfig, **options: object) -> Importance:
        """All slices of `score_in_slices`, which says what the options are."""
        return whole(self.score_in_slices(token_ids, config, **options))

    def score_in_slices(
        self,
        token_ids: Sequence[int],
        config: SpecPrefillConfig,
        *,
        queries: int = TAIL_QUERIES,
        mark_at: Sequence[int] = (),
        fresh: bool = False,
        progress: PrefillProgress | None = None,
    ) -> Work[Importance]:
        """Importance of every token of a prompt. Raises RequestError when it does not fit the draft's context,
        VkPrefillError for NaN or infinity.

        queries: last prompt tokens that are queries where the settings want some and give no number; mark_at: rising
        lengths of beginnings that later prompts may share: scoring can go on from there; fresh: take nothing from
        earlier prompts. The draft runs nothing else between slices.
        """
        kind, lookahead = score_kind(config, self.draft), lookahead_steps(config, self.draft)
        checked_layers(kind.layers, self.draft.config, "score_layers")
        queries = kind.queries if config.tail_queries else min(queries, kind.queries)
        window = config.window_size(self.draft.max_context)
        num_tokens = min(len(token_ids), window or len(token_ids))
        if num_tokens + lookahead > self._prompts.cache.max_context:
            raise RequestError(
                f"draft context: {num_tokens} prompt and {lookahead} look-ahead tokens, the draft holds "
                f"{self._prompts.cache.max_context}; use windows (window) or load it with more"
            )
        # look-ahead queries have scores for the tokens before them too, until their rows are cut
        with self.draft.runner.turn, self._store.borrow(kind, num_tokens + lookahead) as programs:
            self._choose(token_ids, queries, kind, fresh=fresh or window > 0)
            if window:
                return (yield from self._score_windows(token_ids, programs, queries, lookahead, window, progress))
            return (yield from self._score_whole(token_ids, programs, queries, lookahead, mark_at, progress))

    def _score_windows(
        self,
        token_ids: Sequence[int],
        programs: ScorePrograms,
        queries: int,
        lookahead: int,
        window: int,
        progress: PrefillProgress | None,
    ) -> Work[Importance]:
        """Overlapping windows, each with a fresh cache; every token takes its value from exactly one."""
        values = np.empty(len(token_ids), np.float32)
        steps, score_ms, lookahead_ms, start, most = 0, 0.0, 0.0, 0, 0

        def between(done: int, total: int) -> None:
            nonlocal most
            most = max(most, start + done)  # windows overlap
            if progress:
                progress(most, len(token_ids))

        for start, end, score_start, score_end in windows(len(token_ids), window):
            self._prompts.reset()
            part = yield from self._score_whole(token_ids[start:end], programs, queries, lookahead, (), between)
            yield Pause.SLICE
            values[score_start:score_end] = part.values[score_start - start : score_end - start]
            steps, score_ms, lookahead_ms = part.num_steps, score_ms + part.score_ms, lookahead_ms + part.lookahead_ms
        self._prompts.reset()
        return Importance(values, steps, 0, score_ms, lookahead_ms)

    def _score_whole(
        self,
        token_ids: Sequence[int],
        programs: ScorePrograms,
        queries: int,
        lookahead: int,
        mark_at: Sequence[int],
        progress: PrefillProgress | None,
    ) -> Work[Importance]:
        kind, num_tokens, scoring, ahead = programs.kind, len(token_ids), Spent(), Spent()
        first_query = num_tokens - min(queries, num_tokens)
        cached = self._prompts.go_back(self._find(token_ids, queries, kind, self._prompts))
        programs.start(num_tokens, np.arange(num_tokens + lookahead))
        token = yield from scoring.on(self._prefill(token_ids, programs, first_query, mark_at, progress))
        num_steps = num_tokens - first_query
        for _ in range(lookahead):
            if token in self.draft.tokenizer.eog_token_ids:
                break
            yield Pause.SLICE
            with ahead:
                token = self._look_ahead(token, programs)
            num_steps += 1
            if progress:
                progress(num_tokens, num_tokens)
        with ahead:
            values = self._finite(programs.total() / np.float32(num_steps))
        return Importance(values, num_steps, cached, scoring.ms, ahead.ms)

    def _prefill(
        self,
        token_ids: Sequence[int],
        programs: ScorePrograms,
        first_query: int,
        mark_at: Sequence[int],
        progress: PrefillProgress | None,
    ) -> Work[int | None]:
        """Run what is not cached; the best next token where there is look-ahead.

        A stop where a mark is wanted, and after as many queries as a run takes.
        """
        run, prompts, num_tokens, kind = self.draft.runner, self._prompts, len(token_ids), programs.kind
        marks = {*mark_at, num_tokens}
        stops = marks | set(range(first_query + programs.most, num_tokens, programs.most))
        cached, token = len(prompts.prompt), None
        while (begin := len(prompts.prompt)) < num_tokens:
            stop = min(n for n in (*stops, begin + run.tokens_per_run(len(prompts.cache))) if n > begin)

            def ran(done: int, _: int, begin: int = begin) -> None:
                if progress:
                    progress(begin - cached + done, num_tokens - cached)

            def program(_: int, count: int, begin: int = begin) -> Program:
                return programs.prefill(range(max(first_query - begin, 0), count))

            with Spent() as spent:
                token = run.prefill(
                    token_ids[begin:stop],
                    prompts.cache,
                    head=self._best_token if kind.lookahead and stop == num_tokens else None,
                    progress=ran,
                    program_for=program,
                )
            run.meter.of(kind).prefilled(stop - begin, spent.ms / 1e3)
            prompts.note(token_ids[begin:stop], _lacks(kind))
            if stop in marks:
                prompts.mark()
            if stop < num_tokens:
                yield Pause.SLICE
        prompts.settled = max((n for n in mark_at if n < num_tokens), default=num_tokens)
        return token

    def _choose(self, token_ids: Sequence[int], queries: int, kind: ScoreKind, *, fresh: bool) -> None:
        """Which of the conversations is to be in use; fresh: one without content."""
        if self._conversations is None:
            if fresh:
                self._prompts.reset()
        elif fresh:
            self._prompts = self._conversations.choose_empty(len(token_ids))
        else:
            self._prompts = self._conversations.choose(partial(self._find, token_ids, queries, kind), len(token_ids))

    def _find(self, token_ids: Sequence[int], queries: int, kind: ScoreKind, prompts: PromptCache) -> Mark | None:
        """Where the draft can go on from, so that all queries are still to be run."""
        first_query = len(token_ids) - min(queries, len(token_ids))
        return prompts.find(token_ids[: first_query + 1], lambda mark: mark.lacks == _lacks(kind))

    def _best_token(self) -> int:
        return int(self.draft.runner.head_candidates(Best(1))[0][0])

    def _look_ahead(self, token: int, programs: ScorePrograms) -> int:
        """Run a token that the draft made up; the best next one. It is not noted: the next call goes back to the mark
        before it.
        """
        run, best, cache = self.draft.runner, Best(1), self._prompts.cache
        with Spent() as spent:
            found = run.decode(token, cache, lambda: run.candidates(best), best=best, program=programs.decode)
        run.meter.of(programs.kind).decoded(spent.ms / 1e3)
        return int(found[0][0])

    def _finite(self, values: np.ndarray) -> np.ndarray:
        try:
            return self.draft.runner.finite(values, f"importance by the draft {self.draft.path.name}")
        except VkPrefillError:
            self._prompts.reset()  # nothing goes on from such a state
            raise

    def reset(self) -> None:
        """Empty the draft's cache, the one used last."""
        self._prompts.reset()

    def close(self, *, keep_programs: bool = False) -> None:
        """Give the cache back; the programs too, unless another scorer of the draft is open or they are to be kept for
        the next one.
        """
        self._prompts.close()
        self._store.leave(self, keep=keep_programs)


def _lacks(kind: ScoreKind) -> str | None:
    """What a cache lacks that these programs have run on."""
    return None if kind.last_layer is None else f"layers after {kind.last_layer}"


def score_kind(config: SpecPrefillConfig, draft: Model) -> ScoreKind:
    """Which programs of the draft the settings ask for, whether or not it has such layers."""
    queries = config.tail_queries or (MOST_QUERIES if stops_early(config, draft) else 1)
    lookahead, nope = lookahead_steps(config, draft) > 0, config.rows == NOPE
    return ScoreKind(score_layers(config, draft), lookahead, queries, config.pool_size, before_rotary=nope)


def score_layers(config: SpecPrefillConfig, draft: Model) -> tuple[int, ...]:
    """The draft's layers that the settings name, whether or not it has them, or the one at a share of its depth: the
    first attention layer that ends at or after so many of its layers, the last one where none does.
    """
    attention = draft.config.attention_layers
    if config.score_layers != "all":
        return config.score_layers
    depth = AUTO_SCORE_DEPTH if config.score_depth == "auto" else config.score_depth
    if depth == 1:
        return attention
    wanted = depth * draft.config.num_hidden_layers
    return (next((layer for layer in attention if layer + 1 >= wanted), attention[-1]),)


def lookahead_steps(config: SpecPrefillConfig, draft: Model) -> int:
    """Look-ahead needs all layers: where tail queries are asked for, or early layers only, there is none."""
    return 0 if stops_early(config, draft) or config.tail_queries else config.lookahead


def stops_early(config: SpecPrefillConfig, draft: Model) -> bool:
    """Whether the layers that score leave out the draft's last ones."""
    return draft.config.attention_layers[-1] not in score_layers(config, draft)
