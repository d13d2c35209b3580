"""Speculative prefill: the draft scores the prompt, the target prefills what matters, at the original positions.

    token ids -> guards -> Scorer (draft) -> normalise, boost, select -> target prefill of the kept tokens -> decode
    from position T

Without a draft the target's early layers score, and read the whole prompt: SelfScorer in place of Scorer.

Liu, Chen & Zhang 2025, "Speculative Prefill" (arXiv 2502.02789). Delta-net layers see the kept tokens as neighbours,
attention sees the true distances.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral

import numpy as np

from vkprefill.engine.cache import Cache
from vkprefill.engine.capture import checked_layers
from vkprefill.engine.model import Model
from vkprefill.engine.prompt_store import PromptStore
from vkprefill.engine.runner import PrefillProgress
from vkprefill.engine.token_input import checked_ids
from vkprefill.errors import ContextLengthError, RequestError, VkPrefillError
from vkprefill.specprefill import guards
from vkprefill.specprefill.calibration import file_key, speed_of
from vkprefill.specprefill.layout import layout_of
from vkprefill.specprefill.plan import (
    NoRoomForCheck,
    Plan,
    RequestFacts,
    Scored,
    SparseRequest,
    SpecPrefillReport,
    choice_reason,
    finish_plan,
    plan_as_given,
    tool_guard,
)
from vkprefill.specprefill.protection import Protected, protected_of_tokens, tail_queries
from vkprefill.specprefill.scorer import Scorer, lookahead_steps, score_kind, stops_early
from vkprefill.specprefill.selection import boost, least_kept, normalise, select
from vkprefill.specprefill.self_scorer import SelfScorer, own_break_even, scoring_layer
from vkprefill.specprefill.settings import AUTO, DRAFT, SELF, SpecPrefillConfig
from vkprefill.specprefill.shares import KeptShares
from vkprefill.specprefill.unused import NO_DRAFT, Use, unused
from vkprefill.work import Work, no_work, whole

log = logging.getLogger("vkprefill")

MEMO_SIZE = 16  # selections remembered


@dataclass
class SpecPrefillResult:
    """logits float32 [V] of the last token, the cache (its next position is T), the report, importance [T] and kept [K]
    where there are.
    """

    logits: np.ndarray
    cache: Cache
    report: SpecPrefillReport
    importance: np.ndarray | None
    kept: np.ndarray

    @property
    def status(self) -> str:
        return self.report.status


class SpecPrefill:
    """A target and a draft model with a common vocabulary, or (draft None) a target that scores prompts itself where
    the setting scorer is "self". Keeps the draft's cache between prompts; close it to give that back. conversations: of
    the draft, where several are to be kept.
    """

    def __init__(
        self,
        target: Model,
        draft: Model | None,
        config: SpecPrefillConfig | None = None,
        *,
        conversations: PromptStore | None = None,
    ) -> None:
        self.target, self.draft = target, draft
        self.config = config or SpecPrefillConfig()
        if draft is not None:
            check_vocabularies(target, draft)
        self.source(self.config)  # refuses what cannot be
        self._scorer = None if draft is None else Scorer(draft, conversations)
        self._own = SelfScorer(target)
        self._memo: OrderedDict[bytes, Scored] = OrderedDict()
        self._shares = KeptShares(f"{file_key(target)}|{SELF if draft is None else file_key(draft)}")

    def source(self, config: SpecPrefillConfig) -> str | None:
        """Who scores with these settings, "draft" or "self"; None: nobody. RequestError for what there is not."""
        if config.scorer == SELF:
            scoring_layer(config, self.target.config)
        elif config.scorer == DRAFT and self.draft is None:
            raise RequestError("scorer draft: there is no draft model; wanted one, or scorer self")
        elif config.scorer == AUTO:
            return None if self.draft is None else DRAFT
        return config.scorer

    def split_of(self, config: SpecPrefillConfig) -> int | None:
        """The layer after which a prompt is pruned with these settings; None where all layers run the same tokens."""
        return scoring_layer(config, self.target.config) if self.source(config) == SELF else None

    def score(self, token_ids: Sequence[int], config: SpecPrefillConfig | None = None, **options: object) -> Scored:
        """All slices of `score_in_slices`, which says what the options are."""
        return whole(self.score_in_slices(token_ids, config, **options))

    def score_in_slices(
        self,
        token_ids: Sequence[int],
        config: SpecPrefillConfig | None = None,
        *,
        first: int = 0,
        protected: Protected | None = None,
        cache: Cache | None = None,
        mark_at: Sequence[int] = (),
        fresh: bool = False,
        progress: PrefillProgress | None = None,
    ) -> Work[Scored]:
        """Importance and selection without any work of the target, but for scorer self, whose early layers run.

        first: choose among tokens from here on only; protected: what is kept in any case (None: what the tokens alone
        tell); cache: of scorer self, which stands for the tokens before them and is ahead then (None: one of its own,
        for this call); mark_at: rising lengths of beginnings that later prompts may share; fresh: take nothing from
        earlier prompts.
        """
        config = config or self.config
        token_ids, source = self._checked(token_ids, first, "first"), self.source(config)
        if source is None:
            raise RequestError(f"{NO_DRAFT}; wanted one, or scorer self")
        protected = protected_of_tokens(self.target.tokenizer, token_ids) if protected is None else protected
        ranges = protected.ranges(config, len(token_ids) - first)
        key = _memo_key(token_ids, config, first, (ranges, protected.opening))
        reads = source == SELF and cache is not None  # what follows needs the early layers' work, not the choice alone
        if key in self._memo and not (fresh or reads):
            self._memo.move_to_end(key)
            known = self._memo[key]
            return Scored(known.importance, known.selection, 0.0, 0.0, 0.0)
        common = {
            "queries": tail_queries(config, protected, len(token_ids)),
            "mark_at": mark_at,
            "progress": progress,
        }
        if source == SELF:
            with lent_cache(self.target, cache) as lent:
                cached = first if lent is cache else 0
                measured = yield from self._own.score_in_slices(token_ids, config, lent, cached_n=cached, **common)
        else:
            measured = yield from self._scorer.score_in_slices(token_ids, config, fresh=fresh, **common)
        start = time.perf_counter()
        values = boost(normalise(measured.values, config.normalize), config)
        layout = layout_of(self.target.tokenizer, token_ids) if config.chunk_align == "lines" else None
        selection = select(values, config, layout=layout, first=first, protected=ranges, besides=protected.opening)
        scored = Scored(
            measured.values, selection, measured.score_ms, measured.lookahead_ms, (time.perf_counter() - start) * 1e3
        )
        self._shares.note(config, selection, len(token_ids) - first)
        self._memo[key] = scored
        while len(self._memo) > MEMO_SIZE:
            self._memo.popitem(last=False)
        return scored

    def plan(self, token_ids: Sequence[int], asked: SparseRequest | None = None, **options: object) -> Plan:
        """All slices of `plan_in_slices`, which says what the options are."""
        return whole(self.plan_in_slices(token_ids, asked, **options))

    def plan_in_slices(
        self,
        token_ids: Sequence[int],
        asked: SparseRequest | None = None,
        *,
        cached_n: int = 0,
        cache: Cache | None = None,
        mark_at: Sequence[int] = (),
        fresh: bool = False,
        progress: PrefillProgress | None = None,
        before_scoring: Callable[[int], None] | None = None,
        scorer_free: Callable[[], Work[None]] = no_work,
        **fields: object,
    ) -> Work[Plan]:
        """Decide what the target runs of a prompt whose first cached_n tokens it has.

        cache: that will be run on; where scorer self has chosen, its early layers have read the prompt then; mark_at,
        fresh: as for score; before_scoring: called where the prompt is to be scored and pruned, with the fewest tokens
        that the target's cache will take; scorer_free: work that is done when nothing else is scored; fields: of a
        SparseRequest, in place of those of `asked`. Raises RequestError for what is no prompt and for bad kept_ranges,
        what before_scoring raises if it is NoRoomForCheck; with on_error "error" also what the scorer raises.
        """
        asked, token_ids = (asked or SparseRequest()).having(fields), self._checked(token_ids, cached_n, "cached_n")
        config = asked.config or self.config
        num_tokens, new = len(token_ids), len(token_ids) - cached_n
        report = SpecPrefillReport(guards.DISABLED, "switched off", num_tokens, cached_n, settings=config.as_dict())
        dense = Plan(np.arange(cached_n, num_tokens), report)
        source = self.source(config) if asked.enabled else None
        reading = {"cached_n": cached_n, "mark_at": mark_at, "progress": progress}
        report.unused = unused(config, self._use(config, asked, source, num_tokens))
        if not asked.enabled:
            return finish_plan(dense, dense.kept, None)
        if asked.kept_ranges is not None:
            given = plan_as_given(dense, asked, config, self.target.tokenizer, token_ids)
            if source == SELF and given.sparse and cache is not None:
                yield from scorer_free()
                yield from self._own.read_in_slices(token_ids, config, cache, **reading)
            return given
        if source is None:
            report.reason = NO_DRAFT
            return finish_plan(dense, dense.kept, None)
        try:
            protected = asked.protected
            if protected is None:
                protected = protected_of_tokens(self.target.tokenizer, token_ids)
            if skipped := self._guard(token_ids, config, asked.facts, protected, report):
                report.status, report.reason = skipped
                return finish_plan(dense, dense.kept, None)
            if before_scoring is not None and config.keep_ratio < 1:
                before_scoring(new if source == SELF else least_kept(new))
            yield from scorer_free()
            scored = yield from self.score_in_slices(
                token_ids,
                config,
                first=cached_n,
                cache=cache,
                protected=protected,
                mark_at=mark_at,
                fresh=fresh,
                progress=progress,
            )
        except VkPrefillError as error:
            of_target = isinstance(error, ContextLengthError | NoRoomForCheck)  # which would have to run it densely
            if config.on_error == "error" or self.target.device.lost or of_target:
                raise
            log.warning("speculative prefill: %s; prefilling densely", error)
            report.status, report.reason = guards.FAILED, f"the scorer failed: {error}"
            return finish_plan(dense, dense.kept, None)
        report.score_ms, report.lookahead_ms, report.select_ms = scored.score_ms, scored.lookahead_ms, scored.select_ms
        dense.importance, dense.selection = scored.importance, scored.selection
        chooser = "the draft" if source == DRAFT else f"layer {self.split_of(config)}"
        return finish_plan(dense, scored.kept.astype(np.int64), choice_reason(scored.selection, new, config, chooser))

    def prefill(
        self,
        token_ids: Sequence[int],
        cache: Cache | None = None,
        *,
        progress: PrefillProgress | None = None,
        **fields: object,
    ) -> SpecPrefillResult:
        """Plan and prefill a whole prompt into an empty cache (None: a new one); fields: of a SparseRequest.

        Raises what plan and Model.prefill raise, RequestError for a cache that is not empty.
        """
        start = time.perf_counter()
        if cache is not None and len(cache):
            raise RequestError(f"cache: holds {len(cache)} tokens, wanted an empty one")
        with lent_cache(self.target, cache, keep=True) as lent:
            plan = self.plan(token_ids, SparseRequest().having(fields), cache=lent, progress=progress)
            began = time.perf_counter()
            try:
                logits = self.target.prefill(np.asarray(token_ids)[plan.kept], plan.kept, lent, progress=progress)
            except BaseException:
                lent.reset()  # what scorer self has read, too
                raise
        now = time.perf_counter()
        plan.report.sparse_prefill_ms, plan.report.ttft_ms = (now - began) * 1e3, (now - start) * 1e3
        return SpecPrefillResult(logits, lent, plan.report, plan.importance, plan.kept)

    def reset(self) -> None:
        """Forget the last prompt: the draft's cache goes back to its pool."""
        if self._scorer is not None:
            self._scorer.reset()

    def close(self, *, keep_programs: bool = False) -> None:
        """Give the draft's cache back; the programs that score too, unless they are to be kept with the draft for the
        next pair that it is in.
        """
        if self._scorer is not None:
            self._scorer.close(keep_programs=keep_programs)
        self._own.close(keep_programs=keep_programs)

    def _checked(self, token_ids: Sequence[int], num_before: int, name: str) -> list[int]:
        """The token ids. RequestError unless they are some, and num_before of them leave at least one."""
        ids = checked_ids(token_ids, self.target.config.vocab_size).tolist()
        whole = isinstance(num_before, Integral) and not isinstance(num_before, bool)
        if not whole or not 0 <= num_before < len(ids):
            raise RequestError(f"{name}: found {num_before!r}, wanted 0 to {len(ids) - 1}, below the prompt's length")
        return ids

    def _use(self, config: SpecPrefillConfig, asked: SparseRequest, source: str | None, num_tokens: int) -> Use:
        """What the settings are used for in this prompt."""
        if not asked.enabled:
            return Use(None)  # whatever else was asked for
        by_draft = source == DRAFT
        return Use(
            source,
            NO_DRAFT,
            given_ranges=asked.kept_ranges is not None,
            stops_early=by_draft and stops_early(config, self.draft),
            draft_context=self.draft.max_context if by_draft else None,
            num_tokens=num_tokens,
        )

    def _guard(
        self,
        token_ids: Sequence[int],
        config: SpecPrefillConfig,
        facts: RequestFacts,
        protected: Protected,
        report: SpecPrefillReport,
    ) -> tuple[str, str] | None:
        """(status, reason) of the first guard that applies. What the last one estimates goes into the report."""
        new = report.prompt_n - report.cached_n
        if reason := tool_guard(config, facts, self.target.tokenizer, token_ids):
            return guards.SKIPPED_TOOL_GUARD, reason
        if reason := guards.min_tokens_guard(new, config.min_tokens):
            return guards.SKIPPED_MIN_TOKENS, reason
        if config.break_even and config.keep_ratio < 1:
            expected = self._shares.expected(config, new, protected.count(config, report.cached_n, report.prompt_n))
            speed = self._target_speed(config)
            if self.source(config) == SELF:
                estimate = own_break_even(new, expected, config, self.target.config, speed)
            else:
                lookahead = lookahead_steps(config, self.draft)
                estimate = guards.break_even(new, expected, lookahead, self._speeds(config), config.break_even_safety)
            report.dense_estimate_ms = new / speed * 1e3
            if not estimate.worth:
                return guards.SKIPPED_BREAK_EVEN, (
                    f"scoring {new} tokens would take about {estimate.scoring_s * 1e3:.0f} ms and save "
                    f"{estimate.saving_s * 1e3:.0f} ms"
                )
        return None

    def _speeds(self, config: SpecPrefillConfig) -> guards.Speeds:
        """Those of the settings before measured ones. The draft's are of the kind of scoring that is asked for."""
        kind, layers = score_kind(config, self.draft), self.draft.config.num_hidden_layers
        draft = speed_of(self.draft, kind, 1.0 if kind.last_layer is None else (kind.last_layer + 1) / layers)
        return guards.Speeds(
            config.draft_tokens_per_s or draft.prefill,
            draft.decode,
            self._target_speed(config),
        )

    def _target_speed(self, config: SpecPrefillConfig) -> float:
        return config.target_tokens_per_s or speed_of(self.target).prefill


def check_vocabularies(target: Model, draft: Model) -> None:
    """RequestError unless both models have the same vocabulary."""
    if target.tokenizer.vocabulary_hash != draft.tokenizer.vocabulary_hash:
        raise RequestError(
            f"draft {draft.path.name} and target {target.path.name}: their vocabularies differ, wanted one"
        )


@contextmanager
def lent_cache(model: Model, cache: Cache | None, *, keep: bool = False) -> Iterator[Cache]:
    """The caller's, or one of our own that is closed at the end; keep: only after an exception."""
    own = model.new_cache() if cache is None else None
    try:
        yield cache if own is None else own
    except BaseException:
        if own is not None:
            own.close()
        raise
    if own is not None and not keep:
        own.close()


def check_pair(target: Model, draft: Model, config: SpecPrefillConfig) -> None:
    """RequestError for what would make every scoring fail: vocabularies that differ, layers the draft does not have."""
    check_vocabularies(target, draft)
    if config.score_layers != "all":
        checked_layers(config.score_layers, draft.config, "score_layers")


def _memo_key(token_ids: Sequence[int], config: SpecPrefillConfig, first: int, protected: object) -> bytes:
    asked = repr((config.choice, first, protected))
    return hashlib.sha256(np.asarray(token_ids, np.int64).tobytes() + asked.encode()).digest()
