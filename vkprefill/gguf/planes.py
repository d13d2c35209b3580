"""Bits of block formats moved into planes: a plane holds an item of each of 32 rows.

What a start costs is this: no plane is made first and moved then. Bits are moved by exchanges between whole arrays
(`exchange`), and what they give is written to its place in one step (`Planes`).
"""

from __future__ import annotations

import numpy as np

ROW_GROUP = 32  # rows interleaved with each other


class Planes:
    """The planes of all units, one after another: a plane holds an item of each of 32 rows."""

    def __init__(self, out: np.ndarray, rows: int, units: int) -> None:
        self._words = out.reshape(rows // ROW_GROUP, units, -1)
        self._at = 0

    def put(self, *parts: np.ndarray) -> None:
        """Write the next planes. parts: items [rows, units, n] each; their planes alternate: the first of each part,
        the second of each, ...
        """
        item, count = parts[0].dtype, parts[0].shape[2] * len(parts)
        end = self._at + count * ROW_GROUP * item.itemsize // 4
        place = self._words[:, :, self._at : end].view(item)
        place = place.reshape(*place.shape[:2], count, ROW_GROUP).transpose(0, 3, 1, 2)
        for i, part in enumerate(parts):
            place[..., i :: len(parts)] = part.reshape(-1, ROW_GROUP, *part.shape[1:])
        self._at = end


def items(words: np.ndarray) -> np.ndarray:
    """u32 or u64 [rows, units, ...] -> items of 4 words [rows, units, n], which are moved as one: several times as fast
    as words.
    """
    return words.view(np.complex128).reshape(*words.shape[:2], -1)


def words_of(values: np.ndarray) -> np.ndarray:
    """Bytes [..., 4 n] -> u32 [..., n]."""
    return np.ascontiguousarray(values).view(np.uint32)


def exchange(a: np.ndarray, b: np.ndarray, shift: int, mask: int) -> None:
    """Exchange the bits mask << shift of each byte of a with the bits mask of b's, in place."""
    moved = a >> a.dtype.type(shift)
    moved ^= b
    moved &= a.dtype.type(mask * (0x0101010101010101 if a.itemsize == 8 else 0x01010101))
    b ^= moved
    moved <<= a.dtype.type(shift)
    a ^= moved


def nibbles(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """u32 [..., 2 n] whose bytes are two weights each -> u32 [..., n] of the low nibbles, of the high ones.

    Word p: of bytes 8p + c in the low, of 8p + 4 + c in the high nibble of byte c.
    """
    low, high = words[..., 0::2].copy(), words[..., 1::2].copy()
    exchange(low, high, 4, 0x0F)
    return low, high


def halved_nibbles(q: np.ndarray) -> np.ndarray:
    """Bytes [rows, units, blocks, 16], weights 0..15 in the low and 16..31 in the high nibbles -> items of 4 words
    [rows, units, blocks]: word p: weights 8p + c in the low, 8p + 4 + c in the high nibble of byte c.
    """
    low, high = nibbles(words_of(q))
    pairs = np.empty((*low.shape[:3], 2), np.uint64)
    pairs[..., 0], pairs[..., 1] = low.view(np.uint64)[..., 0], high.view(np.uint64)[..., 0]
    return items(pairs)


def joined(words: np.ndarray, bits: int) -> np.ndarray:
    """u32 whose 4 bytes hold `bits` that count each -> u32 with these side by side at its low end."""
    field = (1 << bits) - 1
    values = words & np.uint32(field * 0x01010101)
    values |= values >> np.uint32(8 - bits)
    values &= np.uint32(((1 << 2 * bits) - 1) * 0x00010001)
    values |= values >> np.uint32(16 - 2 * bits)
    values &= np.uint32((1 << 4 * bits) - 1)
    return values


def one_bit(words: np.ndarray) -> list[np.ndarray]:
    """u32 [rows, units, 8] whose byte i has one bit of weight i of each of sub-blocks 0..7 -> for each of these
    [rows, units, 1]; byte c, bit p: weight 8p + c; bit 4 + p: weight 8p + 4 + c.

    In each byte, a square of 8 words by 8 bits is transposed.
    """
    rows = [words[..., i : i + 1].copy() for i in (0, 2, 4, 6, 1, 3, 5, 7)]  # by the bit that a word's bits become
    for shift, mask in ((4, 0x0F), (2, 0x33), (1, 0x55)):
        for i in range(8):
            if not i & shift:
                exchange(rows[i], rows[i + shift], shift, mask)
    return rows


def bits_by_byte(words: np.ndarray) -> np.ndarray:
    """u32 [...], bit i of weight i of a sub-block -> u32 [...] as one_bit gives them.

    Bits 0 and 3, then 1 and 4 of a bit's number change places.
    """
    words = words.copy()
    for shift, mask in ((7, 0x00AA00AA), (14, 0x0000CCCC)):
        moved = (words ^ words >> np.uint32(shift)) & np.uint32(mask)
        words ^= moved ^ moved << np.uint32(shift)
    return words


def two_bits(h: np.ndarray) -> list[np.ndarray]:
    """Bytes [rows, units, 64], each two bits of four weights -> for sub-blocks 0 and 4, 1 and 5, .. items of two words
    [rows, units, 2]; byte c, bits 2p, 2p + 1: weight 8p + c (first), 8p + 4 + c (second word).

    In each byte, a square of 4 words by 4 pairs of bits is transposed.
    """
    words = np.ascontiguousarray(h).view(np.uint64).reshape(*h.shape[:2], 2, 4)
    rows = [words[..., p].copy() for p in range(4)]
    for i, j, shift, mask in ((0, 2, 4, 0x0F), (1, 3, 4, 0x0F), (0, 1, 2, 0x33), (2, 3, 2, 0x33)):
        exchange(rows[i], rows[j], shift, mask)
    return rows
