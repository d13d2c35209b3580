"""Token ids and positions as callers give them -> checked int64 arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkprefill.errors import RequestError

MAX_POSITION = (1 << 31) - 1


def checked_ids(token_ids: Sequence[int], vocab_size: int) -> np.ndarray:
    """int64 [T], at least one. RequestError for what is no token id."""
    ids = _integers(token_ids, "token_ids")
    if ids.min() < 0 or ids.max() >= vocab_size:
        bad = ids[(ids < 0) | (ids >= vocab_size)][0]
        raise RequestError(f"token_ids: found {bad}, wanted 0 to {vocab_size - 1}")
    return ids


def checked_positions(positions: Sequence[int] | None, count: int, *, first: int, last: int) -> np.ndarray:
    """int64 [count], increasing from above `last` (that of the token before); None: from `first` on, one by one."""
    where = np.arange(first, first + count) if positions is None else _integers(positions, "positions")
    if len(where) != count:
        raise RequestError(f"positions: found {len(where)}, wanted {count}, one for each token")
    if where[0] <= last or (np.diff(where) <= 0).any() or where[-1] > MAX_POSITION:
        raise RequestError(
            f"positions: must increase, from above {last} to below 2^31; found {where[0]} to {where[-1]}"
        )
    return where


def _integers(values: Sequence[int], what: str) -> np.ndarray:
    """int64; what does not fit becomes the greatest there is, which no range allows."""
    if not isinstance(values, np.ndarray) and isinstance(values, Sequence):
        if any(isinstance(value, bool | np.bool_) for value in values):
            raise RequestError(f"{what}: found bool, wanted integers")
    try:
        array = np.asarray(values)
    except ValueError:  # nested, of unequal lengths
        array = np.asarray(None)
    if array.shape == (0,):
        raise RequestError(f"{what}: found none, wanted at least one integer")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise RequestError(f"{what}: found {array.dtype} of shape {array.shape}, wanted at least one integer")
    if array.dtype == np.uint64:
        array = np.minimum(array, np.uint64(2**63 - 1))
    return array.astype(np.int64)
