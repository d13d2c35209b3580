"""Where a prompt may be cut: between lines, else between sentences, never inside a character; and which lines are one
block of code by their indentation. All by the bytes of its tokens.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from vkprefill.errors import ShapeError
from vkprefill.text.tokenizer import Tokenizer

SENTENCE_REACH = 3  # a chunk inside a long line may be shorter by a third, to end with a sentence
BLOCK_CHUNKS = 16  # a block with more is looked into for smaller ones

_SENTENCE_START = re.compile(rb"(?<=[.!?])\s+(?=\S)|(?:\xe3\x80\x82|\xef\xbc\x81|\xef\xbc\x9f)(?=.)")
_CLOSES = re.compile(rb"\s*(?:[)\]}]|end\b)")  # a line that ends the block of the line with the same indentation
# Code points that belong to the character before them, beside combining marks; the last joins the next one too.
_CONTINUES = {*range(0xFE00, 0xFE10), *range(0x1F3FB, 0x1F400), 0x200D}


class Layout:
    """Of the prompt with these tokens.

    Attributes:
        line_starts: int [n], rising: tokens that begin a line, the first included.
        sentence_starts: int, rising: tokens that begin a sentence inside a line.
        whole: bool [T]: whether a border before the token cuts no character.
    """

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._data = b"".join(token_bytes)
        sizes = np.array([len(raw) for raw in token_bytes], np.int64)
        self._starts = np.cumsum(sizes) - sizes
        self._lines = [found.span() for found in re.finditer(rb"[^\n]*\n|[^\n]+\Z", self._data)]
        starts = [0, *(self._line_start(begin) for begin, _ in self._lines)]
        self._line_tokens = np.array(starts[1:], np.int64)
        self.line_starts = np.unique([n for n in starts if n < len(token_bytes)])
        ends = [found.end() for found in _SENTENCE_START.finditer(self._data)]
        sentences = np.searchsorted(self._starts, ends, side="right") - 1
        self.sentence_starts = np.unique(sentences[sentences > 0])
        self.whole = np.ones(len(token_bytes), bool)
        for token in np.flatnonzero(np.frombuffer(self._data + b"\n", np.uint8)[self._starts] >= 0x80):
            self.whole[token] = token == 0 or self._begins_character(token)

    def __len__(self) -> int:
        return len(self._starts)

    def _line_start(self, byte: int) -> int:
        """The token that a line beginning at this byte begins with. Where a token holds the line's end and its
        indentation, it is that one.
        """
        token = int(np.searchsorted(self._starts, byte))
        if token and (token == len(self._starts) or self._starts[token] > byte):
            if not self._data[self._starts[token - 1] : byte].strip(b"\r\n"):
                return token - 1
        return token

    def _begins_character(self, token: int) -> bool:
        """Of a token whose first byte is none of ASCII's."""
        at = int(self._starts[token])
        if self._data[at] & 0xC0 == 0x80:
            return False
        character = self._data[at : at + 4].decode(errors="ignore")[:1]
        joined = self._data[max(0, at - 3) : at] == "\u200d".encode()
        return not (character and (unicodedata.combining(character) or ord(character) in _CONTINUES)) and not joined

    def widened(self, mask: np.ndarray) -> np.ndarray:
        """bool [T] with all tokens of each character of which the mask has one."""
        if len(mask) != len(self):
            raise ShapeError(f"layout: of {len(self)} tokens, wanted {len(mask)}")
        character = np.cumsum(self.whole) - 1
        found = np.zeros(character[-1] + 1, bool)
        found[character[mask]] = True
        return found[character]

    def bounds(self, chunk_size: int, first: int) -> np.ndarray:
        """Cut tokens `first` to T - 1 into chunks of at most chunk_size tokens, as many lines as fit: int32 [n + 1]. A
        border stands inside a line only where the line is longer than a chunk.
        """
        borders = [first]
        while len(self) - borders[-1] > chunk_size:
            borders.append(self._next_border(borders[-1], chunk_size))
        return np.unique([*borders, len(self)]).astype(np.int32)

    def _next_border(self, start: int, chunk_size: int) -> int:
        most = start + chunk_size
        number = int(np.searchsorted(self.line_starts, most, side="right"))
        line = int(self.line_starts[number - 1])
        end = int(self.line_starts[number]) if number < len(self.line_starts) else len(self)
        fits = line > start and (end - line <= chunk_size or 2 * (line - start) >= chunk_size)
        if fits or line == most:
            return line
        # A long line: cut before the last sentence that begins inside, else at a character.
        low, high = np.searchsorted(self.sentence_starts, [most - chunk_size // SENTENCE_REACH, most + 1])
        sentences = [int(n) for n in self.sentence_starts[low:high] if n > start and self.whole[n]]
        if sentences:
            return sentences[-1]
        return next((n for n in chain(range(most, start, -1), range(most, len(self))) if self.whole[n]), len(self))

    def blocks(self, chunk_size: int) -> np.ndarray:
        """int [T]: the number of the block that a token's line belongs to, -1 for none: a line with the further
        indented ones below it, the largest such of up to 16 chunks.
        """
        found = np.full(len(self), -1)
        for number, (start, end) in enumerate(self._block_ranges()):
            if end - start <= BLOCK_CHUNKS * chunk_size and found[start] < 0:
                found[start:end] = number
        return found

    def _block_ranges(self) -> Iterator[tuple[int, int]]:
        """Tokens of each block, outer ones before those in them."""
        texts = [self._data[begin:end] for begin, end in self._lines]
        said = [n for n, text in enumerate(texts) if text.strip()]
        indents = {n: len(texts[n].expandtabs()) - len(texts[n].expandtabs().lstrip()) for n in said}
        ends: dict[int, int] = {}
        opened: list[int] = []
        for line in said:
            while opened and indents[opened[-1]] >= indents[line]:
                header = opened.pop()
                closes = indents[header] == indents[line] and _CLOSES.match(texts[line])
                ends[header] = line + 1 if closes else line
            opened.append(line)
        ends |= dict.fromkeys(opened, len(texts))
        for line, below in zip(said, said[1:], strict=False):
            if indents[below] > indents[line]:
                end = ends[line]
                yield int(self._line_tokens[line]), int(self._line_tokens[end]) if end < len(texts) else len(self)


def layout_of(tokenizer: Tokenizer, token_ids: Sequence[int]) -> Layout:
    """Of a prompt of token ids."""
    return Layout([tokenizer.token_bytes(token_id) for token_id in token_ids])
