"""What a client needs to show which tokens of its prompt mattered."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkprefill.text.tokenizer import Tokenizer

DIGITS = 3  # of importance: it is for display


def prompt_details(tokenizer: Tokenizer, token_ids: Sequence[int], importance: np.ndarray | None) -> dict[str, object]:
    """tokens: their texts; importance: of each, None where the draft was not asked."""
    values = None if importance is None else [float(f"{value:.{DIGITS}g}") for value in importance]
    return {"tokens": [text_or_bytes(tokenizer.token_bytes(t)) for t in token_ids], "importance": values}


def text_or_bytes(piece: bytes) -> str | list[int]:
    """Text, or the bytes of a part of a character."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
