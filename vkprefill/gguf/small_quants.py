"""Packing of formats with few bits for a weight: up to three, and the floating-point one with four.

Each function takes blocks uint8 [rows, units, blocks of a unit, block bytes] and puts their planes, as the head of
shaders/include/quant_<layout>.glsl describes them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gguf import GGMLQuantizationType as T

from vkprefill.gguf.planes import Planes, bits_by_byte, halved_nibbles, items, one_bit, two_bits, words_of


def _pack_q2_k(units: np.ndarray, planes: Planes) -> None:
    block = units[:, :, 0]
    planes.put(items(words_of(block[..., 0:16])))
    planes.put(*two_bits(block[..., 16:80]))
    planes.put(words_of(block[..., 80:84]))


def _pack_q3_k(units: np.ndarray, planes: Planes) -> None:
    block = units[:, :, 0]
    header = np.zeros((*block.shape[:2], 16), np.uint8)
    header[..., :14] = block[..., 96:110]  # 12 bytes of scales, d
    planes.put(items(words_of(header)))
    planes.put(*two_bits(block[..., 32:96]))
    planes.put(*one_bit(words_of(block[..., 0:32])))


def _pack_mxfp4(units: np.ndarray, planes: Planes) -> None:
    planes.put(halved_nibbles(units[..., 1:17]))
    planes.put(words_of(units[..., 0]))


def _pack_iq2_xxs(units: np.ndarray, planes: Planes) -> None:
    block = units[:, :, 0]
    rows, signs = np.moveaxis(words_of(block[..., 2:66]).reshape(*block.shape[:2], 8, 2), -1, 0)
    planes.put(_pairs(rows, _seven_signs(signs) | signs & np.uint32(0xF0000000)))
    planes.put(_first_half(block))


def _pack_iq2_xs(units: np.ndarray, planes: Planes) -> None:
    block = units[:, :, 0]
    both, scales = np.ascontiguousarray(block[..., 2:66]).view(np.uint16), block[..., 66:74]
    signs = bits_by_byte(words_of((both >> 9).astype(np.uint8)))
    planes.put(_pairs(words_of(both.astype(np.uint8)), signs | scales.astype(np.uint32) << np.uint32(28)))
    ninth = np.packbits((both >> 8 & 1).astype(np.uint8), axis=-1, bitorder="little")
    second = scales[..., 0::2] >> 4 | scales[..., 1::2] & 0xF0
    planes.put(_pairs(words_of(ninth), words_of(second)))
    planes.put(_first_half(block))


def _pack_iq2_s(units: np.ndarray, planes: Planes) -> None:
    block = units[:, :, 0]
    planes.put(_pairs(words_of(block[..., 2:34]), bits_by_byte(words_of(block[..., 34:66]))))
    planes.put(items(words_of(block[..., 66:82])))  # high bits of the rows, scales
    planes.put(_first_half(block))


def _pack_iq3_xxs(units: np.ndarray, planes: Planes) -> None:
    block = units[:, :, 0]
    signs = words_of(block[..., 66:98])
    planes.put(_rows_of_four(block[..., 2:66]))
    planes.put(_seven_signs(signs) | signs & np.uint32(0xF0000000))
    planes.put(_first_half(block))


def _pack_iq3_s(units: np.ndarray, planes: Planes) -> None:
    block = units[:, :, 0]
    header = np.zeros((*block.shape[:2], 16), np.uint8)
    header[..., 0:8], header[..., 8:12], header[..., 12:14] = block[..., 66:74], block[..., 106:110], block[..., 0:2]
    planes.put(items(words_of(header)))
    planes.put(_rows_of_four(block[..., 2:66]))
    planes.put(bits_by_byte(words_of(block[..., 74:106])))


def _pairs(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """u32 [rows, units, n] each -> items of two words [rows, units, n]."""
    return np.stack([first, second], axis=-1).view(np.uint64)[..., 0]


def _rows_of_four(rows: np.ndarray) -> np.ndarray:
    """Bytes [rows, units, 64], one for 4 weights -> items of two words [rows, units, 8]: of each sub-block the bytes of
    even numbers, then those of odd numbers.
    """
    pairs = rows.reshape(*rows.shape[:2], 8, 4, 2)
    return np.ascontiguousarray(np.swapaxes(pairs, 3, 4)).reshape(rows.shape).view(np.uint64)


def _seven_signs(words: np.ndarray) -> np.ndarray:
    """u32 [...], signs of 7 of each 8 weights in bits 0 to 27 -> as bits_by_byte gives those of 32; of the eighth 0."""
    eights = [(words & np.uint32(0x7F << 7 * p)) << np.uint32(p) for p in range(4)]
    return bits_by_byte(eights[0] | eights[1] | eights[2] | eights[3])


def _first_half(block: np.ndarray) -> np.ndarray:
    """The half at the start of blocks [rows, units, block bytes] -> u32 [rows, units, 1]."""
    return np.ascontiguousarray(block[..., 0:2]).view(np.uint16).astype(np.uint32)


SMALL_PACKERS: dict[T, Callable[[np.ndarray, Planes], None]] = {
    T.Q2_K: _pack_q2_k,
    T.Q3_K: _pack_q3_k,
    T.MXFP4: _pack_mxfp4,
    T.IQ2_XXS: _pack_iq2_xxs,
    T.IQ2_XS: _pack_iq2_xs,
    T.IQ2_S: _pack_iq2_s,
    T.IQ3_XXS: _pack_iq3_xxs,
    T.IQ3_S: _pack_iq3_s,
}
