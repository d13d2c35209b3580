"""Runs the tasks with each method and records the outcomes."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vkprefill.engine.cache import Cache
from vkprefill.engine.model import Model
from vkprefill.engine.step_input import Best
from vkprefill.evaluation.checked import run_checked
from vkprefill.evaluation.comparisons import Comparisons
from vkprefill.evaluation.methods import (
    CHECKED,
    DENSE,
    DENSE_STATE,
    DRAFT,
    ENDS,
    RANDOM,
    SELF,
    Budget,
    Variant,
    choose,
    end_chunks,
    queries_of,
    random_chunks,
)
from vkprefill.evaluation.task import Task
from vkprefill.specprefill.pipeline import lent_cache
from vkprefill.specprefill.scorer import Importance, Scorer
from vkprefill.specprefill.self_scorer import SelfScorer

Step = Callable[[str], None]
"""step(what starts now), for a progress bar."""


@dataclass(frozen=True)
class Outcome:
    """One task by one method. Times in milliseconds; those of steps that a method does not have are 0.

    budget, variant: labels, empty for dense; score: share of what was expected that the answer has; same_first: the
    first token is the dense run's; same_answer: all of the text is; dense_right: that text is right; kl: of the first
    token's distribution from the dense run's, in nats, D(dense || method). Those are None where there was no dense
    run; same_answer and dense_right where it gave no answer (method dense was not asked for); same_first and kl of a
    checked answer, whose status is `check`, "equal" or "revised", and whose check took check_ms.
    """

    task: str
    kind: str
    length: int | None
    depth: float | None
    method: str
    budget: str
    variant: str
    answer: str
    right: bool
    score: float
    same_first: bool | None
    same_answer: bool | None
    dense_right: bool | None
    kl: float | None
    prompt_n: int
    kept_n: int
    score_ms: float
    lookahead_ms: float
    select_ms: float
    prefill_ms: float
    check: str = ""
    check_ms: float = 0.0

    @property
    def ttft_ms(self) -> float:
        return self.score_ms + self.lookahead_ms + self.select_ms + self.prefill_ms


@dataclass(frozen=True)
class Run:
    """A prefill: logits float32 [V] of the last token (None: of a checked answer), tokens run, milliseconds."""

    logits: np.ndarray | None
    kept_n: int
    prefill_ms: float
    score_ms: float = 0.0
    lookahead_ms: float = 0.0
    select_ms: float = 0.0
    check: str = ""
    check_ms: float = 0.0


@dataclass(frozen=True)
class DenseRun:
    """What others are compared with: logits float32 [V] of the last token, the answer (None: not asked for)."""

    logits: np.ndarray
    answer: str | None


class Evaluation:
    """A model and its draft, with what Comparisons takes. Close it to give the caches back. Greedy answers of at most
    max_tokens.
    """

    def __init__(
        self,
        model: Model,
        draft: Model | None,
        methods: Sequence[str],
        budgets: Sequence[Budget],
        variants: Sequence[Variant],
        *,
        self_layers: Sequence[int] | None = None,
        max_tokens: int = 32,
        seed: int = 0,
    ) -> None:
        self.comparisons = Comparisons(model.config, draft is not None, methods, budgets, variants, self_layers)
        self.model, self.methods, self.budgets = model, methods, budgets
        self.max_tokens, self.seed = max_tokens, seed
        self._compared = self.comparisons.compared
        by_draft = [v for method, v in self._compared if not v.by_own_layer(method)]
        self._scorers = {v.scoring: Scorer(draft) for v in by_draft} if draft is not None else {}
        self._own = SelfScorer(model)

    def run(self, tasks: Sequence[Task], step: Step = lambda what: None) -> Iterator[Outcome]:
        """The outcomes of each task in turn."""
        for task in tasks:
            step(f"{task.id} {DENSE}")
            cache = self.model.new_cache()
            try:
                yield from self._run_task(task, cache, step)
            finally:
                cache.close()

    def _run_task(self, task: Task, cache: Cache, step: Step) -> Iterator[Outcome]:
        """cache: an empty one; what is run densely stays in it."""
        ids, dense = list(task.token_ids), None
        if DENSE in self.methods or DENSE_STATE in self.methods:
            start = time.perf_counter()
            if len(ids) > 1:
                self.model.extend(ids[:-1], cache)
            extended = time.perf_counter()
            before_last = cache.snapshot()
            resumed = time.perf_counter()
            logits = self.model.prefill(ids[-1:], cache=cache)  # the same bits as in one call
            run = Run(logits, len(ids), (extended - start + time.perf_counter() - resumed) * 1e3)
            dense = DenseRun(logits, self._answer(logits, cache) if DENSE in self.methods else None)
            if DENSE in self.methods:
                yield self._outcome(task, DENSE, "", "", run, dense, dense.answer)
            cache.restore(before_last)
            before_last.free()
            if DENSE_STATE not in self.methods:
                cache.reset()
        scores: dict[tuple[object, ...], Importance] = {}
        for budget, (method, variant) in itertools.product(self.budgets, self._compared):
            step(f"{task.id} {method} {budget.label} {variant.label}")
            if method == CHECKED:
                run, answer = self._run_checked(task, variant, budget, scores)
            elif method == SELF:
                run, answer = self._run_own(task, variant, budget)
            else:
                scored = self._scored(task, variant, scores)
                run, answer = self._run_sparse(task, method, variant, budget, scored, cache)
            yield self._outcome(task, method, budget.label, variant.label, run, dense, answer)

    def _scored(self, task: Task, variant: Variant, known: dict[tuple[object, ...], Importance]) -> Importance:
        """By the draft, or by the model itself where there is none; once for all that share it."""
        if variant.scoring not in known:
            queries = queries_of(task, variant, self.model.tokenizer)
            if variant.scoring in self._scorers:
                scored = self._scorers[variant.scoring].score(task.token_ids, variant.config, queries=queries)
            else:
                with lent_cache(self.model, None) as cache:
                    scored = self._own.score(task.token_ids, variant.config, cache, queries=queries)
            known[variant.scoring] = scored
        return known[variant.scoring]

    def _run_own(self, task: Task, variant: Variant, budget: Budget) -> tuple[Run, str]:
        """The answer from a prompt of which the layers after the scoring one run what it chose."""
        with lent_cache(self.model, None) as cache:
            queries = queries_of(task, variant, self.model.tokenizer)
            scored = self._own.score(task.token_ids, variant.config, cache, queries=queries)
            start = time.perf_counter()
            kept = choose(scored.values, task, variant, budget, self.model.tokenizer).kept.tolist()
            chosen = time.perf_counter()
            logits = self.model.prefill([task.token_ids[k] for k in kept], kept, cache)
            now = time.perf_counter()
            times = {"score_ms": scored.score_ms, "select_ms": (chosen - start) * 1e3}
            return Run(logits, len(kept), (now - chosen) * 1e3, **times), self._answer(logits, cache)

    def _run_checked(
        self, task: Task, variant: Variant, budget: Budget, scores: dict[tuple[object, ...], Importance]
    ) -> tuple[Run, str]:
        """The answer from what the draft or a layer chose, and its check."""
        scored, start = self._scored(task, variant, scores), time.perf_counter()
        kept = choose(scored.values, task, variant, budget, self.model.tokenizer).kept
        select_ms, config = (time.perf_counter() - start) * 1e3, budget.apply(variant.config)
        done = run_checked(self.model, task.token_ids, kept, config, self.max_tokens)
        times = {"score_ms": scored.score_ms, "lookahead_ms": scored.lookahead_ms, "select_ms": select_ms}
        return Run(None, len(kept), done.prefill_ms, **times, check=done.status, check_ms=done.check_ms), done.answer

    def _run_sparse(
        self, task: Task, method: str, variant: Variant, budget: Budget, scored: Importance, dense: Cache
    ) -> tuple[Run, str]:
        """The answer from the tokens that a method keeps. dense: the cache of a dense run, for dense-state."""
        start = time.perf_counter()
        selection = choose(scored.values, task, variant, budget, self.model.tokenizer)
        select_ms = (time.perf_counter() - start) * 1e3
        if method == RANDOM:
            kept = random_chunks(selection, random.Random(f"{self.seed}/{task.id}/{budget.label}")).tolist()
        else:
            kept = (end_chunks(selection) if method == ENDS else selection.kept).tolist()
        start = time.perf_counter()
        if method == DENSE_STATE and len(kept) > 1:
            cache, todo = dense.copy_rows(kept[:-1]), kept[-1:]
        else:
            cache, todo = self.model.new_cache(), kept
        try:
            logits = self.model.prefill([task.token_ids[k] for k in todo], todo, cache)
            run = Run(logits, len(kept), (time.perf_counter() - start) * 1e3)
            if method == DRAFT:
                run = replace(run, score_ms=scored.score_ms, lookahead_ms=scored.lookahead_ms, select_ms=select_ms)
            return run, self._answer(logits, cache)
        finally:
            cache.close()

    def _answer(self, logits: np.ndarray, cache: Cache) -> str:
        """The greedy answer that starts with the best token of these logits."""
        tokenizer, tokens = self.model.tokenizer, []
        token = int(logits.argmax())
        while token not in tokenizer.eog_token_ids:
            tokens.append(token)
            if len(tokens) == self.max_tokens:
                break
            token = int(self.model.decode_candidates(token, cache, Best(1))[0][0])
        return tokenizer.decode(tokens, special=False)

    def _outcome(
        self, task: Task, method: str, budget: str, variant: str, run: Run, dense: DenseRun | None, answer: str
    ) -> Outcome:
        answered, compared = (
            dense is not None and dense.answer is not None,
            dense is not None and run.logits is not None,
        )
        return Outcome(
            task=task.id,
            kind=task.kind,
            length=task.length,
            depth=task.depth,
            method=method,
            budget=budget,
            variant=variant,
            answer=answer,
            right=task.is_right(answer),
            score=task.score(answer),
            same_first=bool(run.logits.argmax() == dense.logits.argmax()) if compared else None,
            same_answer=answer == dense.answer if answered else None,
            dense_right=task.is_right(dense.answer) if answered else None,
            kl=divergence(dense.logits, run.logits) if compared else None,
            prompt_n=len(task.token_ids),
            kept_n=run.kept_n,
            score_ms=run.score_ms,
            lookahead_ms=run.lookahead_ms,
            select_ms=run.select_ms,
            prefill_ms=run.prefill_ms,
            check=run.check,
            check_ms=run.check_ms,
        )

    def close(self) -> None:
        self._own.close()
        for scorer in self._scorers.values():
            scorer.close()


def divergence(of: np.ndarray, other: np.ndarray) -> float:
    """Kullback-Leibler divergence D(of || other) in nats of the softmax of two logits rows, in float64."""
    p, q = (row - row.max() for row in (of.astype(np.float64), other.astype(np.float64)))
    p, q = p - np.log(np.exp(p).sum()), q - np.log(np.exp(q).sum())
    return max(0.0, float((np.exp(p) * (p - q)).sum()))
