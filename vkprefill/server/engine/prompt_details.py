"""What a client needs to show which tokens of its prompt mattered, and what its last token reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkprefill.explain.layer_map import LayerMap
from vkprefill.text.tokenizer import Tokenizer

DIGITS = 3  # of importance and weights: they are for display


def prompt_details(tokenizer: Tokenizer, token_ids: Sequence[int], importance: np.ndarray | None) -> dict[str, object]:
    """tokens: their texts; importance: of each, None where the draft was not asked."""
    values = None if importance is None else _rounded(importance)
    return {"tokens": [text_or_bytes(tokenizer.token_bytes(t)) for t in token_ids], "importance": values}


def map_details(found: LayerMap) -> dict[str, object]:
    """kinds: of the layers; bounds: first tokens of the columns, and the number of tokens; weights: of each layer, the
    greatest of each column's tokens; memory_bytes: of the device, that the map took.
    """
    bounds, weights = found.columns()
    return {
        "kinds": list(found.kinds),
        "bounds": bounds.tolist(),
        "weights": [_rounded(row) for row in weights],
        "memory_bytes": found.memory_bytes,
    }


def _rounded(values: np.ndarray) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]


def text_or_bytes(piece: bytes) -> str | list[int]:
    """Text, or the bytes of a part of a character."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
