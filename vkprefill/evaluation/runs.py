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
from vkprefill.evaluation.methods import (
    DENSE,
    DENSE_STATE,
    DRAFT,
    ENDS,
    RANDOM,
    Budget,
    Variant,
    choose,
    end_chunks,
    queries_of,
    random_chunks,
)
from vkprefill.evaluation.tasks import Task
from vkprefill.specprefill.scorer import Importance, Scorer

Step = Callable[[str], None]
"""step(what starts now), for a progress bar."""


@dataclass(frozen=True)
class Outcome:
    """One task by one method. Times in milliseconds; those of steps that a method does not have are 0.

    budget, variant: labels, empty for dense; same_first: the first token is the dense run's; kl: of its distribution
    from the dense run's, in nats, D(dense || method); both None where there was no dense run.
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
    same_first: bool | None
    kl: float | None
    prompt_n: int
    kept_n: int
    score_ms: float
    lookahead_ms: float
    select_ms: float
    prefill_ms: float

    @property
    def ttft_ms(self) -> float:
        return self.score_ms + self.lookahead_ms + self.select_ms + self.prefill_ms


@dataclass(frozen=True)
class Run:
    """A prefill: logits float32 [V] of the last token, tokens run, milliseconds."""

    logits: np.ndarray
    kept_n: int
    prefill_ms: float
    score_ms: float = 0.0
    lookahead_ms: float = 0.0
    select_ms: float = 0.0


class Evaluation:
    """A model and its draft with the methods, budgets and variants to run. Close it to give the caches back.

    The controls are run for the first variant only; the others only by the draft's choice. Greedy answers of at most
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
        max_tokens: int = 32,
        seed: int = 0,
    ) -> None:
        self.model, self.methods, self.budgets, self.variants = model, methods, budgets, variants
        self.max_tokens, self.seed = max_tokens, seed
        needs_draft = set(methods) - {DENSE}
        self._scorers = {v.scoring: Scorer(draft) for v in variants} if needs_draft and draft is not None else {}

    @property
    def runs_per_task(self) -> int:
        sparse = [m for m in self.methods if m != DENSE]
        variants = len(self.variants) - 1 if DRAFT in sparse else 0
        return (DENSE in self.methods) + len(self.budgets) * (len(sparse) + variants)

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
        ids, dense_logits = list(task.token_ids), None
        if DENSE in self.methods or DENSE_STATE in self.methods:
            start = time.perf_counter()
            if len(ids) > 1:
                self.model.extend(ids[:-1], cache)
            extended = time.perf_counter()
            before_last = cache.snapshot()
            resumed = time.perf_counter()
            dense_logits = self.model.prefill(ids[-1:], cache=cache)  # the same bits as in one call
            run = Run(dense_logits, len(ids), (extended - start + time.perf_counter() - resumed) * 1e3)
            if DENSE in self.methods:
                yield self._outcome(task, DENSE, "", "", run, dense_logits, self._answer(dense_logits, cache))
            cache.restore(before_last)
            before_last.free()
        scores: dict[tuple[object, ...], Importance] = {}
        for number, variant in enumerate(self.variants):
            methods = [m for m in self.methods if m != DENSE and (number == 0 or m == DRAFT)]
            if methods and variant.scoring not in scores:
                step(f"{task.id} scoring {variant.label}")
                scores[variant.scoring] = self._scorers[variant.scoring].score(
                    ids, variant.config, queries=queries_of(task, variant, self.model.tokenizer)
                )
            for budget, method in itertools.product(self.budgets if methods else (), methods):
                step(f"{task.id} {method} {budget.label} {variant.label}")
                run, answer = self._run_sparse(task, method, variant, budget, scores[variant.scoring], cache)
                yield self._outcome(task, method, budget.label, variant.label, run, dense_logits, answer)

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
        self, task: Task, method: str, budget: str, variant: str, run: Run, dense: np.ndarray | None, answer: str
    ) -> Outcome:
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
            same_first=None if dense is None else bool(run.logits.argmax() == dense.argmax()),
            kl=None if dense is None else divergence(dense, run.logits),
            prompt_n=len(task.token_ids),
            kept_n=run.kept_n,
            score_ms=run.score_ms,
            lookahead_ms=run.lookahead_ms,
            select_ms=run.select_ms,
            prefill_ms=run.prefill_ms,
        )

    def close(self) -> None:
        for scorer in self._scorers.values():
            scorer.close()


def divergence(of: np.ndarray, other: np.ndarray) -> float:
    """Kullback-Leibler divergence D(of || other) in nats of the softmax of two logits rows, in float64."""
    p, q = (row - row.max() for row in (of.astype(np.float64), other.astype(np.float64)))
    p, q = p - np.log(np.exp(p).sum()), q - np.log(np.exp(q).sum())
    return max(0.0, float((np.exp(p) * (p - q)).sum()))
