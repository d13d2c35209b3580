"""SamplingConfig: the settings and their defaults; Sampler: candidates -> token id.

The order is llama.cpp's default chain: top-k, top-p, min-p, temperature. top-p and min-p therefore judge the
probabilities at temperature 1. The presence penalty is subtracted on the device, before candidates are chosen.
"""

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real

import numpy as np

from vkprefill.checks import MOST_INTEGER, check_number, in_range, range_in_words
from vkprefill.display import quoted
from vkprefill.errors import GGUFError, RequestError, ShapeError, VkPrefillError

MAX_CANDIDATES = 64  # more than this the device does not sort out: the whole row of logits is read

# setting: type, least, greatest
LIMITS = {
    "temperature": (Real, 0, 100),
    "top_k": (Integral, 0, MOST_INTEGER),
    "top_p": (Real, 0, 1),
    "min_p": (Real, 0, 1),
    "presence_penalty": (Real, -2, 2),
    "frequency_penalty": (Real, -2, 2),
    "repeat_penalty": (Real, 0.01, 100),
    "repeat_last_n": (Integral, -1, MOST_INTEGER),
    "seed": (Integral, 0, 2**64 - 1),
}

FILE_KEYS = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
}

# Qwen3.5's model card.
THINKING = {"temperature": 1.0, "top_k": 20, "top_p": 0.95, "min_p": 0.0, "presence_penalty": 1.5}
INSTRUCT = {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.0, "presence_penalty": 1.5}


@dataclass(frozen=True)
class SamplingConfig:
    """How the next token is chosen. None stands for the default of the model, see `resolve`.

    Attributes:
        temperature: 0 to 100; 0 takes the most probable token.
        top_k: keep this many most probable tokens; 0 keeps all.
        top_p: 0 to 1; keep the fewest most probable tokens whose probabilities add up to it; 1 keeps all.
        min_p: 0 to 1; keep tokens at least this times as probable as the first; 0 keeps all.
        presence_penalty: -2 to 2; subtracted once from the logits of tokens generated before.
        frequency_penalty: -2 to 2; subtracted from the logits of tokens generated before, as often as they were.
        repeat_penalty: 0.01 to 100; what positive logits of the last tokens, the prompt's too, are divided by, and
            others multiplied with; 1 is off.
        repeat_last_n: how many last tokens that is; 0 for none, -1 for all.
        logit_bias: added to the logits of tokens, by id; a mapping, or pairs. Minus 100 keeps one out.
        seed: 0 to 2^64 - 1; None for a new one each time.

    Raises:
        RequestError: a value out of its range or of the wrong type.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float = 0.0
    repeat_penalty: float = 1.0
    repeat_last_n: int = 64
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, limits in LIMITS.items():
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), *limits)
        object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))

    def resolve(self, metadata: Mapping[str, object], thinking: bool) -> "SamplingConfig":
        """Fill in the settings that are None, all but the seed.

        Each comes from the file's `general.sampling.*` key if there, else from Qwen3.5's card. At temperature 0, the
        presence penalty is 0 unless set: the most probable token is then what the model itself says.

        Args:
            metadata: of the file.
            thinking: whether the model thinks before it answers; the card has settings for both.

        Raises:
            GGUFError: a key of the file out of range or of the wrong type.
        """
        defaults = {**(THINKING if thinking else INSTRUCT), **_file_settings(metadata)}
        chosen = {name: default for name, default in defaults.items() if getattr(self, name) is None}
        config = replace(self, **chosen)
        if config.temperature == 0 and self.presence_penalty is None:
            config = replace(config, presence_penalty=0.0)
        return config


def _checked_bias(bias: object) -> tuple[tuple[int, float], ...]:
    """Pairs of a token's id and what is added to its logit, by rising id."""
    pairs = list(bias.items()) if isinstance(bias, Mapping) else bias
    if isinstance(pairs, str) or not isinstance(pairs, Sequence):
        raise RequestError(f"logit_bias: found {quoted(bias)}, wanted numbers by token id")
    for pair in pairs:
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise RequestError(f"logit_bias: found {quoted(pair)}, wanted a token id and a number")
        check_number("logit_bias: a token id", pair[0], Integral, 0, MOST_INTEGER)
        check_number("logit_bias", pair[1], Real, -1e6, 1e6)
    return tuple(sorted((int(token_id), float(value)) for token_id, value in dict(map(tuple, pairs)).items()))


def new_seed() -> int:
    """A random one."""
    return secrets.randbits(32)


class Sampler:
    """Chooses tokens by a resolved SamplingConfig. The same seed and candidates give the same tokens.

    chances: log-probabilities of the last choice, where a sampler remembers them: see LogprobSampler.
    """

    chances: Sequence[list[tuple[int, float]]] = ()

    def __init__(self, config: SamplingConfig) -> None:
        """RequestError if a setting other than the seed is None."""
        for name, limits in LIMITS.items():
            if name != "seed":
                check_number(name, getattr(config, name), *limits)
        self.config = config
        self.seed = new_seed() if config.seed is None else int(config.seed)
        self._random = np.random.Generator(np.random.PCG64(self.seed))

    @property
    def num_candidates(self) -> int | None:
        """How many of the most probable tokens `sample` needs; None for all of the vocabulary."""
        if self.config.temperature == 0:
            return 1
        return self.config.top_k if 1 <= self.config.top_k <= MAX_CANDIDATES else None

    def sample(self, token_ids: np.ndarray, logits: np.ndarray) -> int:
        """Choose one of the candidates.

        Args:
            token_ids: int [K], at least `num_candidates` of the most probable tokens, in any order.
            logits: float32 [K], theirs, presence penalty subtracted.

        Returns:
            The token's id. Of equal logits, the lowest id counts as the more probable.

        Raises:
            ShapeError: arrays that do not match, or are empty.
            VkPrefillError: a logit that is not finite.
        """
        token_ids, logits = np.asarray(token_ids), np.asarray(logits, np.float64)
        if logits.ndim != 1 or token_ids.shape != logits.shape or not logits.size:
            raise ShapeError(f"candidates: token ids {token_ids.shape}, logits {logits.shape}, wanted both [K], K >= 1")
        wrong = np.flatnonzero(~np.isfinite(logits))
        if wrong.size:
            raise VkPrefillError(f"logits: token {token_ids[wrong[0]]} has {logits[wrong[0]]}, wanted a finite number")
        if self.config.temperature == 0:
            return int(token_ids[logits == logits.max()].min())
        order = np.lexsort((token_ids, -logits))
        kept = self._kept(logits[order])
        with np.errstate(over="ignore"):  # a tiny temperature takes differences to -inf, probabilities to 0
            cumulative = np.cumsum(np.exp((kept - kept[0]) / self.config.temperature))
        # random() is below 1, but its product with the sum may round up to the sum
        drawn = np.searchsorted(cumulative, self._random.random() * cumulative[-1], side="right")
        return int(token_ids[order[min(drawn, len(kept) - 1)]])

    def _kept(self, logits: np.ndarray) -> np.ndarray:
        """The logits [K], highest first, that top-k, top-p and min-p leave: a beginning of the given ones."""
        if self.config.top_k:
            logits = logits[: self.config.top_k]
        if self.config.top_p < 1:
            cumulative = np.cumsum(np.exp(logits - logits[0]))
            logits = logits[: np.searchsorted(cumulative, self.config.top_p * cumulative[-1]) + 1]
        if self.config.min_p > 0:
            logits = logits[logits >= logits[0] + math.log(self.config.min_p)]
        return logits


def _file_settings(metadata: Mapping[str, object]) -> dict[str, float]:
    """The settings that the file has keys for. Its float32 values are rounded back to the decimals they came from."""
    settings = {}
    for name, key in FILE_KEYS.items():
        if key in metadata:
            value = metadata[key]
            if not in_range(value, *LIMITS[name]):
                raise GGUFError(f"{key}: found {quoted(value)}, wanted {range_in_words(*LIMITS[name])}")
            settings[name] = value if LIMITS[name][0] is Integral else round(float(value), 6)
    return settings
