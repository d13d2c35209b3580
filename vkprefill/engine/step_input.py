"""What a recorded program is told anew before each run: the host writes it into the step's buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vkprefill.engine.scratch import Scratch
from vkprefill.engine.sizes import MAX_CANDIDATES, NO_TOKEN
from vkprefill.engine.step import StepWord
from vkprefill.engine.token_input import checked_ids
from vkprefill.errors import RequestError
from vkprefill.gguf.config import ModelConfig


@dataclass(frozen=True)
class Best:
    """How many of the best tokens are wanted, 1 to MAX_CANDIDATES, and the penalty taken from the logits of some tokens
    before they are compared. allowed: uint32 [rows of the run, ceil(V / 32)], a bit for each token that may be one of
    them, in every row at least one; None: all.
    """

    count: int
    penalty: float = 0.0
    penalised: Sequence[int] = ()
    allowed: np.ndarray | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MAX_CANDIDATES:
            raise RequestError(f"num_candidates: {self.count}, wanted 1 to {MAX_CANDIDATES}")

    def unpacked(self, candidates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A row uint32 [MAX_CANDIDATES, 2] of the device -> (ids int64 [k], logits float32 [k]), copies. There are
        fewer than were asked for where fewer tokens were allowed.
        """
        bits, ids = np.array(candidates[: self.count].T, order="C")
        if self.allowed is not None:
            found = ids != NO_TOKEN
            bits, ids = bits[found], ids[found]
        return ids.astype(np.int64), bits.view(np.float32)


def cos_sin(angles: np.ndarray) -> np.ndarray:
    """[..] -> [.., 2]: what a rotary turns by, worked out in float64."""
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1)


class StepInput:
    """Writes the step words, the tokens with their rotary table, and which tokens are penalised or allowed."""

    def __init__(self, scratch: Scratch, config: ModelConfig) -> None:
        self._scratch, self._vocab_size = scratch, config.vocab_size
        half = config.rotary_dim // 2
        self.frequencies = config.rope_theta ** (-np.arange(half) / half)

    def set_words(self, words: Mapping[StepWord, int]) -> None:
        """Words of the step buffer, for the runs to come."""
        view = self._scratch.step.view()
        for word, value in words.items():
            view[word] = value

    def set_tokens(self, ids: np.ndarray, positions: np.ndarray, cache_len: int) -> None:
        """ids [T], the tokens of the run; positions [>= T], for which the rotary table is made; keys in the cache
        before it.
        """
        s = self._scratch
        self.set_words({StepWord.NUM_TOKENS: len(ids), StepWord.CACHE_LEN: cache_len})
        s.token_ids.view()[: len(ids)] = ids
        s.rope.view()[: len(positions)] = cos_sin(positions[:, None] * self.frequencies)

    def set_best(self, best: Best | None) -> None:
        """The candidates wanted; None: none."""
        penalty = int(np.float32(best.penalty if best else 0).view(np.uint32))
        self.set_words({StepWord.PENALTY: penalty, StepWord.NUM_CANDIDATES: best.count if best else 0})
        masked, allowed = best is not None and best.allowed is not None, self._scratch.allowed.view()
        allowed[0] = masked
        if masked:
            allowed[1 : 1 + best.allowed.size] = best.allowed.reshape(-1)
        if penalty:
            bits = np.zeros(self._scratch.seen.shape[0] * 32, np.uint8)
            if len(best.penalised):
                bits[checked_ids(best.penalised, self._vocab_size)] = 1
            self._scratch.seen.view()[:] = np.packbits(bits, bitorder="little").view(np.uint32)
