"""What is added to the logits of tokens, and taken from them, before one is drawn.

The presence penalty alone is taken off on the device. All else is done here, on whole rows of logits: first the bias,
then the repeat penalty (Keskar et al. 2019, arXiv 1909.05858, section 4.1: positive logits are divided by it, others
multiplied), over the last tokens of prompt and answer, then presence and frequency penalties, over the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from vkprefill.errors import RequestError
from vkprefill.generation.sampling import SamplingConfig


class Penalties:
    """Of one answer. seen: distinct tokens of it, where the presence penalty counts; whole: rows of logits have to pass
    through `apply`.
    """

    def __init__(self, config: SamplingConfig, prompt: Sequence[int], vocab_size: int) -> None:
        """config: resolved. RequestError for a bias of a token that there is not."""
        self._config = config
        self.seen: list[int] = []
        self._counts: Counter[int] = Counter()
        repeats = config.repeat_penalty != 1 and config.repeat_last_n != 0
        self._recent = list(prompt) if repeats else None
        self.whole = bool(repeats or config.frequency_penalty or config.logit_bias)
        if wrong := [token_id for token_id, _ in config.logit_bias if token_id >= vocab_size]:
            raise RequestError(f"logit_bias: found token id {wrong[0]}, wanted 0 to {vocab_size - 1}")

    def note(self, token_id: int) -> None:
        """The answer's next token."""
        if self._config.presence_penalty and token_id not in self._counts:
            self.seen.append(token_id)
        if self._config.presence_penalty or self._config.frequency_penalty:
            self._counts[token_id] += 1
        if self._recent is not None:
            self._recent.append(token_id)

    def apply(self, logits: np.ndarray) -> None:
        """float32 [V], in place."""
        config = self._config
        for token_id, bias in config.logit_bias:
            logits[token_id] += np.float32(bias)
        if self._recent is not None:
            start = 0 if config.repeat_last_n < 0 else max(0, len(self._recent) - config.repeat_last_n)
            ids = np.unique(self._recent[start:])
            factor = np.float32(config.repeat_penalty)
            logits[ids] = np.where(logits[ids] > 0, logits[ids] / factor, logits[ids] * factor)
        logits[self.seen] -= np.float32(config.presence_penalty)
        if config.frequency_penalty:
            ids = list(self._counts)
            counts = np.array(list(self._counts.values()), np.float32)
            logits[ids] -= np.float32(config.frequency_penalty) * counts
