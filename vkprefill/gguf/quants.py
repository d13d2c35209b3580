"""Block formats of GGUF -> the layout the kernels read, without loss.

`pack_rows` turns rows of blocks into units of planes, 32 rows interleaved; the planes of each format are described at
the head of shaders/include/quant_<layout>.glsl, which reads them. Everything is a permutation of bits, but for signed
quants, which become unsigned by adding their offset, and Q4_0 and Q5_0, which become Q4_1 and Q5_1 with m = -8 d and
-16 d (exact in half precision: a power of two times d; a d beyond 4096, which no quantiser writes, would overflow and
is refused).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as T

from vkprefill.errors import GGUFError
from vkprefill.gguf.grids import grid_words
from vkprefill.gguf.planes import (
    ROW_GROUP,
    Planes,
    bits_by_byte,
    halved_nibbles,
    items,
    joined,
    nibbles,
    one_bit,
    two_bits,
    words_of,
)
from vkprefill.gguf.small_quants import SMALL_PACKERS
from vkprefill.rounding import ceil_div, round_up


@dataclass(frozen=True)
class Layout:
    """How the kernels read a format.

    name: suffix of the shader variants; unit_weights: weights of one row in a unit; unit_words: 32-bit words of one row
    in a unit; grid_words: of the grid ahead of the rows of each part.
    """

    name: str
    unit_weights: int
    unit_words: int
    grid_words: int = 0


LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout("f32", 64, 64),
        Layout("f16", 64, 32),
        Layout("bf16", 64, 32),
        Layout("q8_0", 64, 17),
        Layout("q4_1", 64, 10),
        Layout("q5_1", 64, 12),
        Layout("iq4_nl", 64, 9),
        Layout("iq4_xs", 256, 34),
        Layout("mxfp4", 128, 17),
        Layout("iq2_xxs", 256, 17, 128),
        Layout("iq2_xs", 256, 19, 256),
        Layout("iq2_s", 256, 21, 512),
        Layout("iq3_xxs", 256, 25, 256),
        Layout("iq3_s", 256, 28, 512),
        Layout("q2_k", 256, 21),
        Layout("q3_k", 256, 28),
        Layout("q4_k", 256, 36),
        Layout("q5_k", 256, 44),
        Layout("q6_k", 256, 53),
    )
}
LAYOUT_OF = {
    T.F32: "f32",
    T.F16: "f16",
    T.BF16: "bf16",
    T.Q8_0: "q8_0",
    T.Q4_0: "q4_1",
    T.Q4_1: "q4_1",
    T.Q5_0: "q5_1",
    T.Q5_1: "q5_1",
    T.IQ4_NL: "iq4_nl",
    T.IQ4_XS: "iq4_xs",
    T.MXFP4: "mxfp4",
    T.IQ2_XXS: "iq2_xxs",
    T.IQ2_XS: "iq2_xs",
    T.IQ2_S: "iq2_s",
    T.IQ3_XXS: "iq3_xxs",
    T.IQ3_S: "iq3_s",
    T.Q2_K: "q2_k",
    T.Q3_K: "q3_k",
    T.Q4_K: "q4_k",
    T.Q5_K: "q5_k",
    T.Q6_K: "q6_k",
}


def layout_of(weight_type: T) -> Layout:
    """The kernels' layout for a GGUF type; KeyError for a type without kernels (tensors.py refuses those earlier)."""
    return LAYOUTS[LAYOUT_OF[weight_type]]


def padded_rows(rows: int) -> int:
    return round_up(rows, ROW_GROUP)


def packed_row_bytes(weight_type: T, row_length: int) -> int:
    """Bytes of one row of `row_length` weights in the packed layout."""
    layout = layout_of(weight_type)
    return ceil_div(row_length, layout.unit_weights) * layout.unit_words * 4


def pack_rows(data: np.ndarray, weight_type: T, out: np.ndarray | None = None) -> np.ndarray:
    """Pack rows of blocks.

    data: uint8 [rows, row_bytes] as in the file; out: where to, uint32 (None: a new array). Returns it, flat,
    padded_rows(rows) * row words; rows added are zero.
    """
    layout = layout_of(weight_type)
    rows = padded_rows(len(data))
    if rows != len(data):
        data = np.concatenate([data, np.zeros((rows - len(data), data.shape[1]), np.uint8)])
    block_weights, block_bytes = GGML_QUANT_SIZES[weight_type]
    if block_weights == 1:
        block_weights, block_bytes = 32, 32 * block_bytes
        if short := -data.shape[1] % block_bytes:
            data = np.concatenate([data, np.zeros((rows, short), np.uint8)], axis=1)
    blocks_in_unit = layout.unit_weights // block_weights
    blocks = data.reshape(rows, -1, block_bytes)
    if short := -blocks.shape[1] % blocks_in_unit:
        blocks = np.concatenate([blocks, np.zeros((rows, short, block_bytes), np.uint8)], axis=1)
    units = blocks.reshape(rows, -1, blocks_in_unit, block_bytes)
    if out is None:
        out = np.empty(rows * units.shape[1] * layout.unit_words, np.uint32)
    PACKERS[weight_type](units, Planes(out, rows, units.shape[1]))
    return out


def pack_part(data: np.ndarray, weight_type: T) -> np.ndarray:
    """A whole part of a matrix: the format's grid, if it has one, then rows as pack_rows gives them."""
    return np.concatenate([grid_words(weight_type), pack_rows(data, weight_type)])


def _k_header(words: np.ndarray) -> np.ndarray:
    """Blocks u32 [rows, units, n] that start with d, dmin and 12 scale bytes -> an item [rows, units, 1]
    (k_header.glsl).

    The 8 scales and 8 mins have 6 bits. Low nibbles of scales 0..3: of bytes 0..3; of mins 0..3: of bytes 4..7; of
    scales 4..7: of bytes 8..11, of mins 4..7: the high nibbles there. The two bits above them: bits 4, 5 of bytes 0..7
    for 0..3, bits 6, 7 of the same for 4..7.
    """
    first, second, third = (words[..., i].copy() for i in (1, 2, 3))
    header = np.empty((*words.shape[:2], 4), np.uint32)
    header[..., 0] = words[..., 0]
    header[..., 1] = joined(first, 4) | joined(third, 4) << np.uint32(16)
    header[..., 2] = joined(second, 4) | joined(third >> np.uint32(4), 4) << np.uint32(16)
    high = [joined(part >> np.uint32(shift), 2) for part in (first, second) for shift in (4, 6)]
    header[..., 3] = high[0] | high[1] << np.uint32(8) | high[2] << np.uint32(16) | high[3] << np.uint32(24)
    return items(header)


def _pack_q4_k(units: np.ndarray, planes: Planes) -> None:
    words = words_of(units[:, :, 0])
    planes.put(_k_header(words))
    low, high = nibbles(words)  # with the header, two words of each: a copy of all goes faster than one of parts
    planes.put(items(low[..., 2:]), items(high[..., 2:]))


def _pack_q5_k(units: np.ndarray, planes: Planes) -> None:
    words = words_of(units[:, :, 0])
    planes.put(_k_header(words))
    low, high = nibbles(words)
    planes.put(items(low[..., 6:]), items(high[..., 6:]))
    planes.put(*one_bit(words[..., 4:12]))


def _pack_q6_k(units: np.ndarray, planes: Planes) -> None:
    block = units[:, :, 0]
    planes.put(items(words_of(block[..., 192:208])))
    low, high = nibbles(words_of(block[..., 0:128]))
    for half in (0, 8):  # words, of 64 weights each
        planes.put(items(low[..., half : half + 8]))
        planes.put(items(high[..., half : half + 8]))
    planes.put(*two_bits(block[..., 128:192]))
    planes.put(block[..., 208:210].copy().view(np.uint16).astype(np.uint32))


def _pack_iq4_xs(units: np.ndarray, planes: Planes) -> None:
    block = units[:, :, 0]
    planes.put(halved_nibbles(block[..., 8:136].reshape(*block.shape[:2], 8, 16)))
    planes.put(words_of(block[..., 0:8]).view(np.uint64))


def _two_halves(units: np.ndarray) -> np.ndarray:
    """The half at the head of each of the two blocks of a unit -> u32 [rows, units, 1]."""
    return words_of(units[..., 0:2].reshape(*units.shape[:2], 4))


def _pack_q8_0(units: np.ndarray, planes: Planes) -> None:
    quants = words_of(units[..., 2:34])  # [rows, units, block, 8]
    quants ^= np.uint32(0x80808080)
    planes.put(items(quants[..., 0::2].copy()), items(quants[..., 1::2].copy()))
    planes.put(_two_halves(units))


def _half_with_min(d: np.ndarray, factor: int) -> np.ndarray:
    """Halves d as bytes [..., 2] -> u32 [...] of d and m = -factor * d as halves."""
    value = np.ascontiguousarray(d).view(np.float16)
    with np.errstate(over="ignore", invalid="ignore"):
        m = (value.astype(np.float32) * np.float32(-factor)).astype(np.float16)
    if not np.isfinite(m).all():
        raise GGUFError(f"scale of a block: found one beyond {65504 // factor}, which cannot be a quantised weight")
    return words_of(np.concatenate([value, m], axis=-1).view(np.uint8))[..., 0]


def _pack_q4_1(units: np.ndarray, planes: Planes) -> None:
    planes.put(halved_nibbles(units[..., 4:20]))
    planes.put(words_of(units[..., 0:4])[..., 0])


def _pack_q4_0(units: np.ndarray, planes: Planes) -> None:
    planes.put(halved_nibbles(units[..., 2:18]))
    planes.put(_half_with_min(units[..., 0:2], 8))


def _pack_q5_1(units: np.ndarray, planes: Planes) -> None:
    planes.put(halved_nibbles(units[..., 8:24]))
    planes.put(words_of(units[..., 0:4])[..., 0])
    planes.put(bits_by_byte(words_of(units[..., 4:8])[..., 0]))


def _pack_q5_0(units: np.ndarray, planes: Planes) -> None:
    planes.put(halved_nibbles(units[..., 6:22]))
    planes.put(_half_with_min(units[..., 0:2], 16))
    planes.put(bits_by_byte(words_of(units[..., 2:6])[..., 0]))


def _pack_iq4_nl(units: np.ndarray, planes: Planes) -> None:
    planes.put(halved_nibbles(units[..., 2:18]))
    planes.put(_two_halves(units))


def _pack_floats(units: np.ndarray, planes: Planes) -> None:
    """F32: plane p holds weights 4p..4p+3 of the unit; F16 and BF16: 8p..8p+7."""
    planes.put(items(words_of(units)))


PACKERS: dict[T, Callable[[np.ndarray, Planes], None]] = {
    T.F32: _pack_floats,
    T.F16: _pack_floats,
    T.BF16: _pack_floats,
    T.Q8_0: _pack_q8_0,
    T.Q4_0: _pack_q4_0,
    T.Q4_1: _pack_q4_1,
    T.Q5_0: _pack_q5_0,
    T.Q5_1: _pack_q5_1,
    T.IQ4_NL: _pack_iq4_nl,
    T.IQ4_XS: _pack_iq4_xs,
    T.Q4_K: _pack_q4_k,
    T.Q5_K: _pack_q5_k,
    T.Q6_K: _pack_q6_k,
    **SMALL_PACKERS,
}
