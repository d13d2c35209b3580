"""Runs tasks by each method and notes what came out."""
from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vkprefill.cache import Cache
from vkprefill.evaluation.methods import DENSE, DENSE_STATE, DRAFT, ENDS, RANDOM, Budget, Variant, choose, end_chunks, random_chunks
from vkprefill.evaluation.tasks import Task
from vkprefill.model import Model
from vkprefill.scorer import Importance, Scorer

Step = Callable[[str], None]
"""step(what starts now), for a progress bar."""


@dataclass(frozen=True)
class Outcome:
    """One task by one method. Times in milliseconds; those of steps that a method does not have are 0.

    budget, variant: labels, empty for dense; same_first: the first token is the dense run's; kl: of its distribution from the dense run's, in
    nats, D(dense || method); both None where there was no dense run.
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


class Evaluation:
    """A model and its draft with the methods, budgets and variants to run. Close it to give the caches back.

    The controls are run for the first variant only; the others only by the draft's choice. Greedy answers of at most max_tokens.
    """

    def __init__(self, model: Model, draft: Model | None, methods: Sequence[str], budgets: Sequence[Budget], variants: Sequence[Variant], *,
                 max_tokens: int = 32, seed: int = 0) -> None:
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
        dense_logits = None
        ids = list(task.token_ids)
        if DENSE in self.methods or DENSE_STATE in self.methods:
            start = time.perf_counter()
            if len(ids) > 1:
                self.model.extend(ids[:-1], cache)
            before = time.perf_counter() - start
            before_last = cache.snapshot()
            start = time.perf_counter()
            dense_logits = self.model.prefill(ids[-1:], cache=cache)
            prefill_ms = (before + time.perf_counter() - start) * 1e3
            if DENSE in self.methods:
                answer = self._answer(dense_logits, cache)
                yield self._outcome(task, DENSE, "", "", answer, dense_logits, dense_logits, len(ids), prefill_ms)
            cache.restore(before_last)
            before_last.free()
        scores: dict[tuple[object, ...], Importance] = {}
        for number, variant in enumerate(self.variants):
            wanted = [m for m in self.methods if m != DENSE and (number == 0 or m == DRAFT)]
            if not wanted:
                continue
            if variant.scoring not in scores:
                step(f"{task.id} scoring {variant.label}")
                scores[variant.scoring] = self._scorers[variant.scoring].score(ids, variant.config)
            scored = scores[variant.scoring]
            for budget in self.budgets:
                start = time.perf_counter()
                selection = choose(scored.values, ids, variant, budget, task.question_at, self.model.tokenizer)
                select_ms = (time.perf_counter() - start) * 1e3
                rng = random.Random(f"{self.seed}/{task.id}/{budget.label}")
                for method in wanted:
                    step(f"{task.id} {method} {budget.label} {variant.label}")
                    kept = {RANDOM: lambda: random_chunks(selection, rng), ENDS: lambda: end_chunks(selection)}.get(
                        method, lambda: selection.kept)().tolist()
                    start = time.perf_counter()
                    run = cache.copy_rows(kept[:-1]) if method == DENSE_STATE else self.model.new_cache()
                    try:
                        todo = kept[-1:] if method == DENSE_STATE else kept
                        logits = self.model.prefill([ids[k] for k in todo], todo, run)
                        ms = (time.perf_counter() - start) * 1e3
                        answer = self._answer(logits, run)
                    finally:
                        run.close()
                    times = (scored, select_ms) if method == DRAFT else None
                    yield self._outcome(task, method, budget.label, variant.label, answer, logits, dense_logits, len(kept), ms, times)

    def _answer(self, logits: np.ndarray, cache: Cache) -> str:
        """The greedy answer that starts with the best token of these logits."""
        tokenizer, tokens = self.model.tokenizer, []
        token = int(logits.argmax())
        while token not in tokenizer.eog_token_ids:
            tokens.append(token)
            if len(tokens) == self.max_tokens:
                break
            token = int(self.model.decode_candidates(token, cache, 1)[0][0])
        return tokenizer.decode(tokens, special=False)

    def _outcome(self, task: Task, method: str, budget: str, variant: str, answer: str, logits: np.ndarray, dense: np.ndarray | None,
                 kept_n: int, prefill_ms: float, times: tuple[Importance, float] | None = None) -> Outcome:
        scored, select_ms = times or (None, 0.0)
        return Outcome(
            task.id, task.kind, task.length, task.depth, method, budget, variant, answer, task.is_right(answer),
            None if dense is None else bool(logits.argmax() == dense.argmax()), None if dense is None else divergence(dense, logits),
            len(task.token_ids), kept_n, scored.score_ms if scored else 0.0, scored.lookahead_ms if scored else 0.0, select_ms, prefill_ms,
        )

    def close(self) -> None:
        for scorer in self._scorers.values():
            scorer.close()


def divergence(of: np.ndarray, other: np.ndarray) -> float:
    """Kullback-Leibler divergence D(of || other) in nats of the softmax of two logits rows, in float64."""
    p, q = (row - row.max() for row in (of.astype(np.float64), other.astype(np.float64)))
    p, q = p - np.log(np.exp(p).sum()), q - np.log(np.exp(q).sum())
    return max(0.0, float((np.exp(p) * (p - q)).sum()))
