"""Packing of formats with few bits for a weight: up to three, and the floating-point one with four.

Each function takes blocks uint8 [rows, units, blocks of a unit, block bytes] and puts their planes, as the head of
shaders/include/quant_<layout>.glsl describes them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gguf import GGMLQuantizationType as T

from vkprefill.gguf.planes import Planes, halved_nibbles, items, one_bit, two_bits, words_of


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


SMALL_PACKERS: dict[T, Callable[[np.ndarray, Planes], None]] = {
    T.Q2_K: _pack_q2_k,
    T.Q3_K: _pack_q3_k,
    T.MXFP4: _pack_mxfp4,
}
