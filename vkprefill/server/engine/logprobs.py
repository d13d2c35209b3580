"""Log-probabilities of chosen tokens and of the most probable ones beside them, as in OpenAI's answers.

They are the model's own, at temperature 1 and before top-k, top-p and min-p; the presence penalty is taken off before.
"""

from __future__ import annotations

import numpy as np

from vkprefill.generation.sampling import Sampler, SamplingConfig
from vkprefill.text.tokenizer import Tokenizer


class LogprobSampler(Sampler):
    """A Sampler that remembers the log-probabilities of its last choice. It chooses the same tokens."""

    def __init__(self, config: SamplingConfig, num_logprobs: int) -> None:
        super().__init__(config)
        self._num_logprobs = num_logprobs
        # one list of (token id, log-probability): the chosen token, then the most probable ones
        self.chances: list[list[tuple[int, float]]] = []

    @property
    def num_candidates(self) -> None:
        """All of the vocabulary: the sum over it is needed."""
        return None

    def sample(self, token_ids: np.ndarray, logits: np.ndarray) -> int:
        chosen = super().sample(token_ids, logits)
        index = int(np.flatnonzero(token_ids == chosen)[0])
        found = chances_of(logits, index, self._num_logprobs)
        self.chances = [[(int(token_ids[i]), value) for i, value in found]]
        return chosen


def chances_of(logits: np.ndarray, index: int, num_logprobs: int) -> list[tuple[int, float]]:
    """(index, log-probability) of one of the logits, and then of the greatest ones, equal ones by rising index."""
    values = np.asarray(logits, np.float64)
    values = values - values.max()
    values -= np.log(np.exp(values).sum())
    count = min(num_logprobs, len(values))
    best = np.argpartition(-values, count - 1)[:count] if count else np.empty(0, np.int64)
    best = best[np.lexsort((best, -values[best]))]
    return [(int(i), float(values[i])) for i in (index, *best)]


def logprob_entry(tokenizer: Tokenizer, chances: list[tuple[int, float]]) -> dict[str, object]:
    """One element of `logprobs.content`."""
    chosen, *best = [_one(tokenizer, token_id, value) for token_id, value in chances]
    return {**chosen, "top_logprobs": best}


def _one(tokenizer: Tokenizer, token_id: int, value: float) -> dict[str, object]:
    raw = tokenizer.token_bytes(token_id)
    return {"id": token_id, "token": raw.decode(errors="replace"), "bytes": list(raw), "logprob": value}
