"""The text that facts are hidden in: sentences made from a seed, or those of a user's file."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence
from pathlib import Path

from vkprefill.errors import RequestError
from vkprefill.evaluation.sentences import FILLERS, filler

MOST_CHARACTERS = 240  # of a piece: longer sentences are cut between words
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
LEAST_TOKENS = 4  # a piece of generated filler has more


def read_haystack(path: str | Path) -> tuple[str, ...]:
    """A text file's sentences, in order. RequestError for a file that is not UTF-8 text, or has none."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise RequestError(f"{path}: is not UTF-8 text, at byte {error.start}") from None
    pieces = [piece for sentence in SENTENCE_END.split(text) for piece in _pieces(" ".join(sentence.split()))]
    if not pieces:
        raise RequestError(f"{path}: holds no text")
    return tuple(pieces)


def pool_of(rng: random.Random, length: int, haystack: Sequence[str] | None) -> list[str]:
    """More sentences than `length` tokens hold: a file's in order, from a place that the seed chooses, around and
    around, or made ones.
    """
    count = length // LEAST_TOKENS + 1 if haystack is None else length + 1
    if haystack is None:
        return [filler(rng, FILLERS) for _ in range(count)]
    start = rng.randrange(len(haystack))
    return list(itertools.islice(itertools.cycle([*haystack[start:], *haystack[:start]]), count))


def _pieces(sentence: str) -> list[str]:
    """A sentence, cut between words where it is long (in a word that is)."""
    found = []
    while len(sentence) > MOST_CHARACTERS:
        cut = sentence.rfind(" ", 1, MOST_CHARACTERS)
        cut = cut if cut > 0 else MOST_CHARACTERS
        found.append(sentence[:cut].strip())
        sentence = sentence[cut:].strip()
    return [*found, sentence] if sentence else found
