"""Token after token: what the model says of the last ones, and what the request's sampler makes of it.

A round runs the last token and those drafted after it, none in plain decoding. The sampler draws from the model's word
on each in turn, as if they were run one by one; the first token that is drawn otherwise than drafted ends the round. So
the tokens are those of plain decoding, whatever the drafts are.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vkprefill.drafting.drafters import Drafting
from vkprefill.engine.cache import Cache
from vkprefill.engine.model import Model
from vkprefill.engine.rows import Rows
from vkprefill.engine.runner import PrefillProgress
from vkprefill.engine.step_input import Best
from vkprefill.errors import OutOfMemoryError
from vkprefill.generation.choices import Choices
from vkprefill.generation.penalties import Penalties
from vkprefill.generation.sampling import Sampler
from vkprefill.specprefill import guards
from vkprefill.work import Pause


@dataclass
class Timings:
    """Token counts and milliseconds of one generation; `as_dict` has llama-server's names.

    cache_n: prompt tokens taken from the cache; prompt_n: prompt tokens the target ran; specprefill: the status;
    predicted_n: tokens sampled, the end-of-generation token included; predicted_ms: from the first to the last of them,
    so that rates count one less (None for a single token); draft_n: tokens drafted; draft_n_accepted: of them, those
    that were sampled.
    """

    cache_n: int = 0
    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0
    draft_n: int = 0
    draft_n_accepted: int = 0
    specprefill: str = guards.DISABLED

    def as_dict(self) -> dict[str, object]:
        return {
            "cache_n": self.cache_n,
            "prompt_n": self.prompt_n,
            "prompt_ms": self.prompt_ms,
            "prompt_per_token_ms": _ratio(self.prompt_ms, self.prompt_n),
            "prompt_per_second": _ratio(self.prompt_n * 1e3, self.prompt_ms),
            "predicted_n": self.predicted_n,
            "predicted_ms": self.predicted_ms,
            "predicted_per_token_ms": _ratio(self.predicted_ms, self.predicted_n - 1),
            "predicted_per_second": _ratio((self.predicted_n - 1) * 1e3, self.predicted_ms) or None,
            "draft_n": self.draft_n,
            "draft_n_accepted": self.draft_n_accepted,
            "specprefill": self.specprefill,
        }


def _ratio(a: float, b: float) -> float | None:
    return a / b if b > 0 else None


def generate_step(
    model: Model,
    token_ids: Sequence[int],
    cache: Cache,
    sampler: Sampler,
    *,
    timings: Timings,
    drafting: Drafting | None = None,
    limit: int | None = None,
    positions: Sequence[int] | None = None,
    progress: PrefillProgress | None = None,
    between: Callable[[], bool] | None = None,
    choices: Choices | None = None,
    prompt: Sequence[int] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Generator[int | Pause, None, None]:
    """Sampled token ids, without end: prefill token_ids, then decode, with a Pause before each round of it. When a
    token is given out, the cache holds all before it.

    drafting: None for plain decoding; limit: tokens that will be asked for (None: as many as there is room for);
    positions: of token_ids (None: following those in the cache); between: called before each round, when all tokens of
    those before were given out; True ends the answer there; choices: says which tokens may be drawn (None:
    all); prompt: all of it, for penalties (None: token_ids); clock: seconds, for timings.

    Adds to timings as it goes.
    """
    penalties = Penalties(sampler.config, token_ids if prompt is None else prompt, model.config.vocab_size)
    steps = _Steps(model, cache, sampler, drafting or Drafting(), timings, choices, penalties)
    start = clock()
    tokens = iter([steps.prefill(token_ids, positions, progress)])
    now = clock()
    timings.prompt_n += len(token_ids)
    timings.prompt_ms += (now - start) * 1e3
    start = now
    left = min(cache.max_context - len(cache) + 1, limit or sys.maxsize)  # the last token need not be run
    while True:
        for token_id in tokens:
            timings.predicted_n += 1
            timings.predicted_ms = (clock() - start) * 1e3
            yield token_id
            left -= 1
        if between and between():
            return
        yield Pause.SLICE
        tokens = steps.round(token_id, left)


class _Steps:
    """An answer in the making."""

    def __init__(
        self,
        model: Model,
        cache: Cache,
        sampler: Sampler,
        drafting: Drafting,
        timings: Timings,
        choices: Choices | None,
        penalties: Penalties,
    ) -> None:
        self._model, self._cache, self._sampler, self._drafting = model, cache, sampler, drafting
        self._timings, self._choices, self._penalties = timings, choices, penalties
        self._allowed: np.ndarray | None = None  # the bits of what may be drawn, for each row of the run

    def prefill(
        self, token_ids: Sequence[int], positions: Sequence[int] | None, progress: PrefillProgress | None
    ) -> int:
        """The first token of the answer."""
        self._allowed_for([])
        best, more = self._best(1), {"positions": positions, "progress": progress}
        if best:
            return self._sample(*self._model.prefill_candidates(token_ids, self._cache, best, **more))
        logits = self._model.prefill(token_ids, cache=self._cache, **more)
        return self._sample(np.arange(len(logits)), logits)

    def round(self, token_id: int, left: int) -> Iterator[int]:
        """Run token_id and what is drafted after it; the tokens drawn, one more than were drafted right.

        left: tokens that will be asked for.
        """
        start = time.perf_counter()
        drafted = self._allowed_for(self._drafting.propose(token_id, self._cache, left - 1))
        self._penalties.note(token_id)
        try:
            rows = self._run([token_id, *drafted])
        except OutOfMemoryError:  # a page more may be wanted for the drafts than for the token
            if not drafted:
                raise
            drafted, rows = [], self._run([token_id])
        seconds = time.perf_counter() - start
        self._timings.draft_n += len(drafted)
        accepted = 0
        for row, guess in enumerate((*drafted, None)):
            token_id = self._sample(*rows.take(), row)
            accepted += token_id == guess
            self._timings.draft_n_accepted += token_id == guess
            yield token_id
            if token_id != guess or not rows.open:
                break
            self._penalties.note(token_id)
        self._drafting.note(len(drafted), accepted, seconds)

    def _run(self, token_ids: list[int]) -> Rows:
        return self._model.run_rows(token_ids, self._cache, self._best(len(token_ids)))

    def _allowed_for(self, drafted: list[int]) -> list[int]:
        """The drafts that may be; what may be drawn from each row is known from here on."""
        if self._choices is not None:
            drafted, self._allowed = self._choices.rows(drafted)
        return drafted

    def _best(self, rows: int) -> Best | None:
        """What the sampler draws from, if the device can sort that out; None: the whole row of logits."""
        count = self._sampler.num_candidates
        if count is None or self._penalties.whole:
            return None
        allowed = None if self._allowed is None else self._allowed[:rows]
        penalty = self._sampler.config.presence_penalty
        return Best(min(count, self._model.config.vocab_size), penalty, self._penalties.seen, allowed)

    def _sample(self, token_ids: np.ndarray, logits: np.ndarray, row: int = 0) -> int:
        count = self._sampler.num_candidates
        if count is None or self._penalties.whole:  # else the device has done all this
            self._penalties.apply(logits)
            if self._allowed is not None:
                bits = np.unpackbits(self._allowed[row].view(np.uint8), bitorder="little")
                may = bits[: len(logits)].view(bool)
                token_ids, logits = token_ids[may], logits[may]
            if count is not None and count < len(logits):
                best = logits >= np.partition(logits, -count)[-count]
                token_ids, logits = token_ids[best], logits[best]
        token_id = self._sampler.sample(token_ids, logits)
        if self._choices is not None:
            self._choices.push(token_id)
        return token_id
