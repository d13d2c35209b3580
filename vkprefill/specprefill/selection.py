"""Which prompt tokens the target prefills: attention rows -> importance [T] -> chunks -> kept tokens. numpy only.

After Liu, Chen, Zhang, "Speculative Prefill", arXiv 2502.02789, section 3: importance is aggregated from attention
(maximum over heads and layers, mean over lookahead steps), smoothed by average pooling, and tokens are kept by chunks.
The shares of the importance (mode "mass"), the boosts and the limits are not the paper's.

Every function is a pure one: the same input gives the same output. Sums are taken in float64.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vkprefill.errors import ShapeError, VkPrefillError
from vkprefill.specprefill.layout import Layout
from vkprefill.specprefill.settings import SpecPrefillConfig

FIRST_KEPT = 4  # attention sinks, or the marker that opens a turn
LAST_KEPT = 2  # the logits come from the last
LEAST_KEPT_DIVISOR = 10  # at least a tenth of the tokens,
LEAST_KEPT_RANGE = (4, 128)  # but for short and long prompts
NEARLY_EQUAL = 1.125  # of scores whose order the block of code decides
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
        floor_n: tokens kept only since fewer would be less than the least that is.
    """

    kept: np.ndarray
    kept_ranges: tuple[tuple[int, int], ...]
    forced: np.ndarray
    chunk_bounds: np.ndarray
    chunk_scores: np.ndarray
    protected_n: int = 0
    capped_n: int = 0
    floor_n: int = 0

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


def chunk_bounds(num_tokens: int, chunk_size: int, first: int = 0, layout: Layout | None = None) -> np.ndarray:
    """Cut tokens `first` to T - 1 into chunks; the last may be short. With a layout, where it says.

    Args:
        num_tokens: T, at least 1.
        chunk_size: in tokens, at least 1.
        first: 0 to T - 1; where the first chunk starts.
        layout: of the prompt.

    Returns:
        int32 [n + 1], rising from `first` to T: chunk i has the tokens bounds[i] up to bounds[i + 1].
    """
    if not 0 <= first < num_tokens or chunk_size < 1:
        raise ShapeError(
            f"chunks of {chunk_size} tokens from {first} of {num_tokens}: wanted chunks of 1 or more, "
            "and a first token below their number"
        )
    if layout is not None:
        return layout.bounds(chunk_size, first)
    return np.array([*range(first, num_tokens, chunk_size), num_tokens], np.int32)


def select(
    importance: np.ndarray,
    config: SpecPrefillConfig,
    *,
    layout: Layout | None = None,
    first: int = 0,
    protected: Ranges = (),
    besides: Ranges = (),
) -> Selection:
    """Choose the tokens to prefill.

    1. Forced: the first 4 and last 2 tokens, the last `tail`, the ranges of the setting `protect`, those of `besides`,
       and those that are `protected` (what of them there is).
    2. Chunks by falling mean importance, the earlier first of equal ones (`_order` says more for chunk_align "lines").
       "mass": until their importance and that of the protected tokens add up to cumulative_mass of the whole; at least
       one chunk, unless some tokens are protected. "chunk": until they and the protected tokens are as many as the
       tokens of the ceil(keep_ratio x chunks) best chunks; with chunk_align "lines", whose chunks differ in length,
       until they are keep_ratio of the tokens. So protected tokens are a part of what is asked for, chosen first; the
       other forced ones come on top.
    3. Further chunks in that order while fewer than min(128, max(4, T / 10)) tokens are kept.
    4. Chunks dropped from the end of that order while more than max_keep tokens are kept. Forced tokens stay, even
       where they alone are more; a chunk is never cut, so a max_keep below a chunk leaves the forced ones.

    With chunk_align "lines" no character is cut: of one that is kept in part, all tokens are.

    Step 4 wins over 3. A keep_ratio of 1 keeps every token in both modes, whatever max_keep is: it asks for the dense
    prefill.

    Args:
        importance: float [T], at least 0, normalised and boosted.
        config: the settings.
        layout: of the prompt, for chunk_align "lines".
        first: 0 to T - 1; tokens before it are held by a cache already. Only those from here on are chosen, T in the
            rules above is their number, and the first 4 are the first of them.
        protected, besides: (start, end) pairs.

    Returns:
        The choice, the same for the same arguments.

    Raises:
        VkPrefillError: importance that is not finite or below 0.
        ShapeError: an empty prompt, a `first` beyond it, chunk_align "lines" without a layout.
    """
    values = _importance(importance)
    if values.min() < 0:
        raise VkPrefillError(f"importance: token {values.argmin()} has {values.min():g}, wanted at least 0")
    layout = layout if config.chunk_align == "lines" else None
    if config.chunk_align == "lines" and (layout is None or len(layout) != len(values)):
        raise ShapeError(f"layout: wanted that of {len(values)} tokens for chunk_align lines")
    bounds = chunk_bounds(len(values), config.chunk_size, first, layout)
    sizes = np.diff(bounds)
    sums = np.add.reduceat(values, bounds[:-1])
    scores = (sums / sizes).astype(np.float32)  # rounded, so that equal tokens make equal chunks of any size
    order = _order(scores, bounds, layout, config.chunk_size)
    held = _mask(len(values), protected, first)
    forced = _forced(len(values), first, config) | _mask(len(values), besides, first) | held
    if layout is not None:
        held, forced = (np.where(np.arange(len(values)) < first, False, layout.widened(m)) for m in (held, forced))

    def rising(amounts: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """[n + 1]: the amounts [T] of all in the mask and of the first 0 to n chunks of the order, each token once."""
        others = np.add.reduceat(np.where(mask, 0, amounts), bounds[:-1])
        return amounts[mask].sum() + np.concatenate([[0], np.cumsum(others[order])])

    ones = np.ones(len(values), np.int64)
    num_kept = rising(ones, forced)
    if config.keep_ratio == 1:
        asked = wanted = chosen = len(order)
    else:
        if config.select_mode == "chunk":
            num_chunks = math.ceil(config.keep_ratio * len(order) * (1 - ROUNDING))
            share = sizes[order[:num_chunks]].sum() if layout is None else config.keep_ratio * sizes.sum()
            chosen = np.searchsorted(rising(ones, held), share * (1 - ROUNDING))
        else:
            enough = config.cumulative_mass * sums.sum() * (1 - ROUNDING)
            chosen = max(0 if held.any() else 1, np.searchsorted(rising(values, held), enough))
        floor = min(least_kept(len(values) - first), num_kept[-1])
        asked = min(len(order), int(chosen))
        wanted = chosen = max(asked, int(np.searchsorted(num_kept, floor)))
        if config.most_kept:
            chosen = max(0, min(chosen, int(np.searchsorted(num_kept, config.most_kept, side="right")) - 1))

    keep = forced.copy()
    for chunk in order[:chosen]:
        keep[bounds[chunk] : bounds[chunk + 1]] = True
    return Selection(
        _positions(keep),
        _ranges(keep),
        _positions(forced),
        bounds,
        scores,
        protected_n=int(held.sum()),
        capped_n=int(num_kept[wanted] - num_kept[chosen]),
        floor_n=int(num_kept[chosen] - num_kept[min(asked, chosen)]),
    )


def least_kept(num_tokens: int) -> int:
    """How many of so many tokens are kept at least."""
    least, greatest = LEAST_KEPT_RANGE
    return min(greatest, max(least, math.ceil(num_tokens / LEAST_KEPT_DIVISOR)))


def _order(scores: np.ndarray, bounds: np.ndarray, layout: Layout | None, chunk_size: int) -> np.ndarray:
    """int [n]: chunks, best first, the earlier of equal ones. With a layout, scores within an eighth of each other are
    taken for equal where some text is indented: of such chunks those come first that share a block of code with a
    better one, then those with the better score.
    """
    order = np.argsort(-scores, kind="stable")
    blocks = None if layout is None else layout.blocks(chunk_size)
    if blocks is None or blocks.max() < 0:
        return order
    best = np.zeros(blocks.max() + 2)  # score of each block; the last stands for none
    blocks = blocks[bounds[0] :]
    np.maximum.at(best, blocks, np.repeat(scores, np.diff(bounds)))
    best[-1] = 0
    wanted = np.maximum.reduceat(best[blocks], bounds[:-1] - bounds[0])
    level = np.floor(np.log(np.maximum(scores, np.finfo(np.float32).tiny)) / math.log(NEARLY_EQUAL))
    return np.lexsort((np.arange(len(scores)), -scores, -wanted, -level))


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
