"""Which prompt tokens the target prefills: attention rows -> importance [T] -> chunks -> kept tokens. numpy only.

After Liu, Chen, Zhang, "Speculative Prefill", arXiv 2502.02789, section 3: importance is aggregated from attention
(maximum over heads and layers, mean over lookahead steps), smoothed by average pooling, and tokens are kept by chunks.
The shares of the importance (mode "mass"), the boosts and the limits are not the paper's.

Every function is a pure one: the same input gives the same output. Sums are taken in float64.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from vkprefill.errors import ShapeError, VkPrefillError
from vkprefill.specprefill.settings import SpecPrefillConfig

FIRST_KEPT = 4  # attention sinks, or the marker that opens a turn
LAST_KEPT = 2  # the logits come from the last
LEAST_KEPT_DIVISOR = 10  # at least a tenth of the tokens,
LEAST_KEPT_RANGE = (4, 128)  # but for short and long prompts
LINE_REACH = 8  # tokens that a border may move to a line end
ROUNDING = 1e-9  # relative; 0.07 x 100 chunks are 7, not the 8 that float64 would round up to

Ranges = Sequence[tuple[int, int]]
"""(start, end) pairs of tokens, ends not included."""


@dataclass(frozen=True, eq=False)
class Selection:
    """What `select` chose.

    Attributes:
        kept: int32 [K], rising, each once: positions in the prompt.
        kept_ranges: the same as (start, end) pairs, end not included, none touching the next.
        forced: int32, rising: those of `kept` that are kept in any case.
        chunk_bounds: int32 [n + 1], rising: chunk i has the tokens chunk_bounds[i] up to chunk_bounds[i + 1].
        chunk_scores: float32 [n]: mean importance of each chunk's tokens.
        protected_n: tokens kept because they were given as protected.
        capped_n: tokens that max_keep left out of what would have been kept.
    """

    kept: np.ndarray
    kept_ranges: tuple[tuple[int, int], ...]
    forced: np.ndarray
    chunk_bounds: np.ndarray
    chunk_scores: np.ndarray
    protected_n: int = 0
    capped_n: int = 0

    @property
    def kept_all(self) -> bool:
        """Whether every token that could be chosen was."""
        return len(self.kept) == self.chunk_bounds[-1] - self.chunk_bounds[0]


def pool(rows: np.ndarray, size: int) -> np.ndarray:
    """Centred average over the last axis; near the edges, over the tokens that there are.

    Args:
        rows: float [..., T].
        size: odd, in tokens; 1 changes nothing. May be greater than T.

    Returns:
        float64 [..., T].

    Raises:
        ShapeError: no tokens, or a size that is not odd and positive.
    """
    rows = np.asarray(rows, np.float64)
    if rows.ndim == 0 or rows.shape[-1] == 0 or size < 1 or size % 2 == 0:
        raise ShapeError(f"pool: rows {rows.shape}, size {size}, wanted [..., T] with T >= 1 and an odd size")
    num_tokens, half = rows.shape[-1], size // 2
    position = np.arange(num_tokens)
    start, end = np.maximum(position - half, 0), np.minimum(position + half + 1, num_tokens)
    sums = np.concatenate([np.zeros((*rows.shape[:-1], 1)), np.cumsum(rows, axis=-1)], axis=-1)
    return (sums[..., end] - sums[..., start]) / (end - start) if size > 1 else rows


def importance_from_rows(steps: Sequence[np.ndarray], num_tokens: int, pool_size: int) -> np.ndarray:
    """importance[t] = mean over steps (max over layers (max over heads (pool(row)[t]))).

    The reduction that the device does, for rows that were read back and for tests.

    Args:
        steps: one array a query, float [layers, H, S], S >= num_tokens: softmax rows; only the prompt's T keys count.
        num_tokens: T.
        pool_size: odd; 1 for no pooling.

    Returns:
        float32 [T].

    Raises:
        ShapeError: no steps, or rows of the wrong shape.
        VkPrefillError: a row that is not finite.
    """
    if not len(steps) or num_tokens < 1:
        raise ShapeError(f"rows: {len(steps)} steps over {num_tokens} tokens, wanted at least one of both")
    total = np.zeros(num_tokens)
    for rows in steps:
        if rows.ndim != 3 or 0 in rows.shape or rows.shape[-1] < num_tokens:
            raise ShapeError(f"rows: found {rows.shape}, wanted [layers, heads, keys] with at least {num_tokens} keys")
        rows = _finite("attention row", rows[..., :num_tokens])
        total += pool(rows, pool_size).max(axis=(0, 1))
    return (total / len(steps)).astype(np.float32)


def windows(num_tokens: int, window: int) -> list[tuple[int, int, int, int]]:
    """Overlapping windows over a prompt, for a draft that cannot read all of it at once.

    Windows start every window // 2 tokens. Each scores that many tokens at its beginning, the last all of its own, so
    that every token is scored once. A window that reaches the end of the prompt is the last.

    Args:
        num_tokens: of the prompt, at least 1.
        window: tokens of a window; 0, or the prompt's length or more, gives one window.

    Returns:
        (start, end, score_start, score_end) of each window, positions in the prompt, ends not included.
    """
    if num_tokens < 1 or window < 0:
        raise ShapeError(f"windows: {num_tokens} tokens, window {window}, wanted at least 1 and at least 0")
    window = window or num_tokens
    stride = max(1, window // 2)
    found, start = [], 0
    while start + window < num_tokens:
        found.append((start, start + window, start, start + stride))
        start += stride
    return [*found, (start, num_tokens, start, num_tokens)]


def normalise(importance: np.ndarray, how: str) -> np.ndarray:
    """Scale importance, so that it does not depend on the prompt's length. Equal values throughout give ones.

    Args:
        importance: float [T].
        how: "minmax": to [0, 1]. "percentile": the rank from 0, of equal values their mean rank, over T - 1.
            "zscore": max(0, 1 + (x - mean) / standard deviation of the T values).

    Returns:
        float32 [T], at least 0.

    Raises:
        VkPrefillError: a value that is not finite.
    """
    values = _importance(importance)
    least, greatest = values.min(), values.max()
    if least == greatest:
        scaled = np.ones_like(values)
    elif how == "minmax":
        scaled = (values - least) / (greatest - least)
    elif how == "percentile":
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        ranks = np.cumsum(counts) - counts + (counts - 1) / 2
        scaled = ranks[inverse] / (len(values) - 1)
    elif how == "zscore":
        values = (values - least) / (greatest - least)  # changes no z-score; squares of tiny numbers would be 0
        scaled = np.maximum(0, 1 + (values - values.mean()) / values.std())
    else:
        raise ShapeError(f"normalise: found {how}, wanted minmax, percentile or zscore")
    return scaled.astype(np.float32)


def boost(importance: np.ndarray, config: SpecPrefillConfig) -> np.ndarray:
    """Importance times the factors for the first and last tokens of the prompt; a token in both gets both.

    Args:
        importance: float [T], normalised.
        config: its boost_* settings count.

    Returns:
        float32 [T].
    """
    values = _importance(importance).copy()
    values[: config.boost_first_n] *= config.boost_first_mult
    values[max(0, len(values) - config.boost_last_n) :] *= config.boost_last_mult
    return values.astype(np.float32)


def chunk_bounds(
    num_tokens: int, chunk_size: int, line_ends: Sequence[int] | None = None, first: int = 0
) -> np.ndarray:
    """Cut tokens `first` to T - 1 into chunks; the last may be short.

    With line ends, each border moves to the nearest place after one, if that is at most 8 tokens away (the earlier of
    two as near). Borders that meet are one, and one that reaches either end is none, so chunks may be longer.

    Args:
        num_tokens: T, at least 1.
        chunk_size: in tokens, at least 1.
        line_ends: positions of tokens that end a line, in any order; None to leave the borders.
        first: 0 to T - 1; where the first chunk starts.

    Returns:
        int32 [n + 1], rising from `first` to T: chunk i has the tokens bounds[i] up to bounds[i + 1].
    """
    if not 0 <= first < num_tokens or chunk_size < 1:
        raise ShapeError(
            f"chunks of {chunk_size} tokens from {first} of {num_tokens}: wanted chunks of 1 or more, "
            "and a first token below their number"
        )
    borders = np.arange(first + chunk_size, num_tokens, chunk_size)
    if line_ends is not None and len(line_ends) and len(borders):
        starts = np.unique(np.asarray(line_ends, np.int64)) + 1
        after = np.searchsorted(starts, borders)
        left, right = starts[np.maximum(after - 1, 0)], starts[np.minimum(after, len(starts) - 1)]
        nearest = np.where(abs(borders - left) <= abs(right - borders), left, right)
        borders = np.where(abs(nearest - borders) <= LINE_REACH, nearest, borders)
        borders = borders[(borders > first) & (borders < num_tokens)]
    return np.unique([first, *borders, num_tokens]).astype(np.int32)


def select(
    importance: np.ndarray,
    config: SpecPrefillConfig,
    *,
    line_ends: Sequence[int] | None = None,
    first: int = 0,
    protected: Ranges = (),
    besides: Ranges = (),
) -> Selection:
    """Choose the tokens to prefill.

    1. Forced: the first 4 and last 2 tokens, the last `tail`, the ranges of the setting `protect`, those of `besides`,
       and those that are `protected` (what of them there is).
    2. Chunks by falling mean importance, the earlier first of equal ones. "mass": until their importance and that of
       the protected tokens add up to cumulative_mass of the whole. "chunk": until they and the protected tokens are as
       many as the tokens of the ceil(keep_ratio x chunks) best chunks. So protected tokens are a part of what is asked
       for, chosen first; the other forced ones come on top. At least one chunk in mode "mass", unless some are
       protected.
    3. Further chunks in that order while fewer than min(128, max(4, T / 10)) tokens are kept.
    4. Chunks dropped from the end of that order while more than max_keep tokens are kept. Forced tokens stay, even
       where they alone are more; a chunk is never cut, so a max_keep below a chunk leaves the forced ones.

    Step 4 wins over 3. A keep_ratio of 1 keeps every token in both modes, whatever max_keep is: it asks for the dense
    prefill.

    Args:
        importance: float [T], at least 0, normalised and boosted.
        config: the settings.
        line_ends: for chunk_align "lines": positions of tokens that end a line; see `line_ends`.
        first: 0 to T - 1; tokens before it are held by a cache already. Only those from here on are chosen, T in the
            rules above is their number, and the first 4 are the first of them.
        protected, besides: (start, end) pairs.

    Returns:
        The choice, the same for the same arguments.

    Raises:
        VkPrefillError: importance that is not finite or below 0.
        ShapeError: an empty prompt, a `first` beyond it, chunk_align "lines" without line ends.
    """
    values = _importance(importance)
    if values.min() < 0:
        raise VkPrefillError(f"importance: token {values.argmin()} has {values.min():g}, wanted at least 0")
    if config.chunk_align == "lines" and line_ends is None:
        raise ShapeError("line_ends: found none, wanted the positions of line ends for chunk_align lines")
    bounds = chunk_bounds(len(values), config.chunk_size, line_ends if config.chunk_align == "lines" else None, first)
    sizes = np.diff(bounds)
    sums = np.add.reduceat(values, bounds[:-1])
    scores = (sums / sizes).astype(np.float32)  # rounded, so that equal tokens make equal chunks of any size
    order = np.argsort(-scores, kind="stable")
    held = _mask(len(values), protected, first)
    forced = _forced(len(values), first, config) | _mask(len(values), besides, first) | held

    def rising(amounts: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """[n + 1]: the amounts [T] of all in the mask and of the first 0 to n chunks of the order, each token once."""
        others = np.add.reduceat(np.where(mask, 0, amounts), bounds[:-1])
        return amounts[mask].sum() + np.concatenate([[0], np.cumsum(others[order])])

    ones = np.ones(len(values), np.int64)
    num_kept = rising(ones, forced)
    if config.keep_ratio == 1:
        wanted = chosen = len(order)
    else:
        if config.select_mode == "chunk":
            num_chunks = math.ceil(config.keep_ratio * len(order) * (1 - ROUNDING))
            chosen = np.searchsorted(rising(ones, held), sizes[order[:num_chunks]].sum())
        else:
            enough = config.cumulative_mass * sums.sum() * (1 - ROUNDING)
            chosen = max(0 if held.any() else 1, np.searchsorted(rising(values, held), enough))
        least, greatest = LEAST_KEPT_RANGE
        floor = min(greatest, max(least, (len(values) - first) / LEAST_KEPT_DIVISOR), num_kept[-1])
        wanted = chosen = min(len(order), max(int(chosen), int(np.searchsorted(num_kept, floor))))
        if config.most_kept:
            chosen = max(0, min(chosen, int(np.searchsorted(num_kept, config.most_kept, side="right")) - 1))

    keep = forced.copy()
    for chunk in order[:chosen]:
        keep[bounds[chunk] : bounds[chunk + 1]] = True
    capped_n = int(num_kept[wanted] - num_kept[chosen])
    return Selection(_positions(keep), _ranges(keep), _positions(forced), bounds, scores, int(held.sum()), capped_n)


def line_ends(token_texts: Iterable[bytes]) -> np.ndarray:
    """Positions of the tokens whose bytes end with a newline: int32, rising."""
    return np.array([t for t, text in enumerate(token_texts) if text.endswith(b"\n")], np.int32)


def _forced(num_tokens: int, first: int, config: SpecPrefillConfig) -> np.ndarray:
    """bool [T]: the tokens from `first` on that are kept in any case."""
    forced = np.zeros(num_tokens, bool)
    forced[first : first + FIRST_KEPT] = True
    forced[max(0, num_tokens - max(LAST_KEPT, config.tail)) :] = True
    forced[:first] = False
    return forced | _mask(num_tokens, config.protect, first)


def _mask(num_tokens: int, ranges: Ranges, first: int) -> np.ndarray:
    """bool [T]: the tokens of these ranges, from `first` on."""
    mask = np.zeros(num_tokens, bool)
    for start, end in ranges:
        mask[start:end] = True
    mask[:first] = False
    return mask


def _positions(mask: np.ndarray) -> np.ndarray:
    return np.flatnonzero(mask).astype(np.int32)


def _ranges(mask: np.ndarray) -> tuple[tuple[int, int], ...]:
    """The (start, end) pairs of a mask's true stretches."""
    changes = np.flatnonzero(np.diff(mask, prepend=False, append=False))
    return tuple(zip(changes[::2].tolist(), changes[1::2].tolist(), strict=True))


def _importance(values: np.ndarray) -> np.ndarray:
    """As float64 [T]. ShapeError for another shape or no tokens, VkPrefillError for a value that is not finite."""
    values = np.asarray(values)
    if values.ndim != 1 or not values.size:
        raise ShapeError(f"importance: found shape {values.shape}, wanted [T] with T >= 1")
    return _finite("importance", values)


def _finite(name: str, values: np.ndarray) -> np.ndarray:
    values = np.asarray(values, np.float64)
    wrong = np.argwhere(~np.isfinite(values))
    if len(wrong):
        token = wrong[0][-1]
        raise VkPrefillError(f"{name}: token {token} has {values[tuple(wrong[0])]}, wanted a finite number")
    return values
