"""How keys and values lie in a page of the cache (shaders/include/kv.glsl), for the few places where the host looks."""

from __future__ import annotations

import numpy as np

from vkprefill.engine.sizes import PAGE

BITS = {"f16": np.uint16, "f32": np.uint32}  # kv_type -> type that holds the bits of one number


def rows_of_page(words: np.ndarray, heads: int, kv_type: str, *, keys: bool) -> np.ndarray:
    """A page's 32-bit words -> the bits of its keys (or values), [PAGE, heads, head size]."""
    bits = words.view(BITS[kv_type])
    dim = bits.size // (heads * PAGE)
    if keys:
        rows = bits.reshape(heads, dim // 4, PAGE, 4).transpose(2, 0, 1, 3)
    elif kv_type == "f16":  # in pairs of slots
        rows = bits.reshape(heads, PAGE // 2, dim, 2).transpose(1, 3, 0, 2)
    else:
        rows = bits.reshape(heads, PAGE, dim).transpose(1, 0, 2)
    return rows.reshape(PAGE, heads, dim)


def page_of_rows(rows: np.ndarray, *, keys: bool) -> np.ndarray:
    """The other way: bits [PAGE, heads, head size] -> 32-bit words."""
    _, heads, dim = rows.shape
    if keys:
        bits = rows.reshape(PAGE, heads, dim // 4, 4).transpose(1, 2, 0, 3)
    elif rows.dtype == BITS["f16"]:
        bits = rows.reshape(PAGE // 2, 2, heads, dim).transpose(2, 0, 3, 1)
    else:
        bits = rows.transpose(1, 0, 2)
    return np.ascontiguousarray(bits).reshape(-1).view(np.uint32)
