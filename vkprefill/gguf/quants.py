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

ROW_GROUP = 32  # rows interleaved with each other


@dataclass(frozen=True)
class Layout:
    """How the kernels read a format.

    name: suffix of the shader variants; unit_weights: weights of one row in a unit; unit_words: 32-bit words of one row
    in a unit.
    """

    name: str
    unit_weights: int
    unit_words: int


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
    T.Q4_K: "q4_k",
    T.Q5_K: "q5_k",
    T.Q6_K: "q6_k",
}


def layout_of(weight_type: T) -> Layout:
    """The kernels' layout for a GGUF type; KeyError for a type without kernels (tensors.py refuses those earlier)."""
    return LAYOUTS[LAYOUT_OF[weight_type]]


def padded_rows(rows: int) -> int:
    return -(-rows // ROW_GROUP) * ROW_GROUP


def packed_row_bytes(weight_type: T, row_length: int) -> int:
    """Bytes of one row of `row_length` weights in the packed layout."""
    layout = layout_of(weight_type)
    return -(-row_length // layout.unit_weights) * layout.unit_words * 4


def pack_rows(data: np.ndarray, weight_type: T) -> np.ndarray:
    """Pack rows of blocks.

    data: uint8 [rows, row_bytes] as in the file. Returns uint32, flat, padded_rows(rows) * row words; rows added are
    zero.
    """
    layout = layout_of(weight_type)
    rows = padded_rows(len(data))
    if rows != len(data):
        data = np.concatenate([data, np.zeros((rows - len(data), data.shape[1]), np.uint8)])
    block_weights, block_bytes = GGML_QUANT_SIZES[weight_type]
    if block_weights == 1:
        block_weights, block_bytes = 32, 32 * block_bytes
    blocks_in_unit = layout.unit_weights // block_weights
    blocks = data.reshape(rows, -1, block_bytes)
    if short := -blocks.shape[1] % blocks_in_unit:
        blocks = np.concatenate([blocks, np.zeros((rows, short, block_bytes), np.uint8)], axis=1)
    units = blocks.reshape(rows, -1, blocks_in_unit, block_bytes)
    planes = [_interleave(plane) for plane in PACKERS[weight_type](units)]
    return np.concatenate(planes, axis=2).reshape(-1)


def _interleave(plane: np.ndarray) -> np.ndarray:
    """[rows, units, planes, words] u32 -> [rows / 32, units, planes * 32 * words]: a plane holds `words` of each of 32
    rows.
    """
    rows, units, planes, words = plane.shape
    if words == 4:  # moved as one item of 16 bytes: several times as fast
        items = np.ascontiguousarray(plane).view(np.complex128)[..., 0]
        grouped = items.reshape(rows // ROW_GROUP, ROW_GROUP, units, planes).transpose(0, 2, 3, 1)
    else:
        grouped = plane.reshape(rows // ROW_GROUP, ROW_GROUP, units, planes, words).transpose(0, 2, 3, 1, 4)
    return np.ascontiguousarray(grouped).view(np.uint32).reshape(rows // ROW_GROUP, units, planes * ROW_GROUP * words)


def _words(values: np.ndarray) -> np.ndarray:
    """Bytes [..., 4 n] -> u32 [..., n]."""
    return np.ascontiguousarray(values).view(np.uint32)


def _word_pairs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes [..., 32] -> u32 [..., 4] twice: bytes 8p..8p+3 and 8p+4..8p+7 of each p."""
    words = _words(values).reshape(*values.shape[:-1], 4, 2)
    return words[..., 0], words[..., 1]


def _nibbles(q: np.ndarray) -> np.ndarray:
    """Bytes [..., 32] of two weights each -> u32 [..., 2, 4]: those of the low nibbles, those of the high ones.

    Word p: weights 8p + c in the low, 8p + 4 + c in the high nibble of byte c.
    """
    low = np.uint32(0x0F0F0F0F)
    a, b = _word_pairs(q)
    return np.stack([(a & low) | ((b & low) << 4), ((a >> 4) & low) | (b & ~low)], axis=-2)


def _halved_nibbles(q: np.ndarray) -> np.ndarray:
    """Bytes [..., 16], weights 0..15 in the low and 16..31 in the high nibbles -> u32 [..., 4] as _nibbles."""
    return _nibbles(np.concatenate([q & 15, q >> 4], axis=-1))[..., 0, :]


def _join(words: np.ndarray, bits: int) -> np.ndarray:
    """u32 [..., 4] -> u32 [...]: word p moved up by p * bits. (Four terms: a numpy reduction would take five times as
    long.)
    """
    return words[..., 0] | words[..., 1] << bits | words[..., 2] << 2 * bits | words[..., 3] << 3 * bits


def _fifth_bits(bits: np.ndarray) -> np.ndarray:
    """Bytes [..., 32], of which bit 0 counts -> u32 [..., 1]; byte c, bit p: weight 8p + c; bit 4 + p: weight 8p + 4 +
    c.
    """
    one = np.uint32(0x01010101)
    a, b = _word_pairs(bits)
    return _join((a & one) | (b & one) << 4, 1)[..., None]


def _high_pairs(h: np.ndarray) -> np.ndarray:
    """Bytes [..., 32], each two bits of four weights -> u32 [..., 4, 2], a row for each of the four; byte c, bits 2p,
    2p + 1: weight 8p + c (first), 8p + 4 + c (second word).
    """
    three = np.uint32(0x03030303)
    pairs = np.empty((*h.shape[:-1], 4, 2), np.uint32)
    for second, words in enumerate(_word_pairs(h)):
        for i in range(4):
            pairs[..., i, second] = _join((words >> 2 * i) & three, 2)
    return pairs


def _k_scales(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 12 scale bytes of Q4_K and Q5_K -> 6-bit scales and mins, u8 [..., 8] each."""
    first, second, third = s[..., 0:4], s[..., 4:8], s[..., 8:12]
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 6) << 4)], axis=-1)
    mins = np.concatenate([second & 63, (third >> 4) | ((second >> 6) << 4)], axis=-1)
    return scales, mins


def _bit_fields(values: np.ndarray, bits: int) -> np.ndarray:
    """[..., n] -> u32 [...]: value i at bit i * bits."""
    shifts = np.arange(values.shape[-1], dtype=np.uint32) * np.uint32(bits)
    return np.bitwise_or.reduce(values.astype(np.uint32) << shifts, axis=-1)


def _k_header(block: np.ndarray) -> np.ndarray:
    """Blocks [rows, units, bytes] that start with d, dmin and 12 scale bytes -> u32 [rows, units, 1, 4]
    (k_header.glsl).
    """
    scales, mins = _k_scales(block[..., 4:16])
    high = _bit_fields(scales >> 4, 2) | (_bit_fields(mins >> 4, 2) << np.uint32(16))
    words = [_words(block[..., 0:4])[..., 0], _bit_fields(scales & 15, 4), _bit_fields(mins & 15, 4), high]
    return np.stack(words, axis=-1)[:, :, None, :]


def _pack_q4_k(units: np.ndarray) -> list[np.ndarray]:
    block = units[:, :, 0]
    lead = block.shape[:2]
    return [_k_header(block), _nibbles(block[..., 16:144].reshape(*lead, 4, 32)).reshape(*lead, 8, 4)]


def _pack_q5_k(units: np.ndarray) -> list[np.ndarray]:
    block = units[:, :, 0]
    lead = block.shape[:2]
    bits = block[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]  # [.., sub-block, 32]
    return [
        _k_header(block),
        _nibbles(block[..., 48:176].reshape(*lead, 4, 32)).reshape(*lead, 8, 4),
        _fifth_bits(bits),
    ]


def _pack_q6_k(units: np.ndarray) -> list[np.ndarray]:
    block = units[:, :, 0]
    lead = block.shape[:2]
    low = np.swapaxes(_nibbles(block[..., 0:128].reshape(*lead, 2, 2, 32)), 3, 4)  # half, nibble, group mod 2
    high = _high_pairs(block[..., 128:192].reshape(*lead, 2, 32))
    d = np.zeros((*lead, 1, 4), np.uint8)
    d[..., 0, :2] = block[..., 208:210]
    scales = _words(block[..., 192:208])[:, :, None, :]
    return [scales, low.reshape(*lead, 8, 4), high.reshape(*lead, 8, 2), _words(d)]


def _pack_iq4_xs(units: np.ndarray) -> list[np.ndarray]:
    block = units[:, :, 0]
    return [_halved_nibbles(block[..., 8:136].reshape(*block.shape[:2], 8, 16)), _words(block[..., 0:8])[:, :, None, :]]


def _two_halves(units: np.ndarray) -> np.ndarray:
    """The half at the head of each of the two blocks of a unit -> u32 [rows, units, 1, 1]."""
    return _words(units[..., 0:2].reshape(*units.shape[:2], 4))[:, :, None, :]


def _pack_q8_0(units: np.ndarray) -> list[np.ndarray]:
    quants = np.stack(_word_pairs(units[..., 2:34]), axis=-2) ^ np.uint32(
        0x80808080
    )  # [rows, units, sub-block, half, p]
    return [quants.reshape(*units.shape[:2], 4, 4), _two_halves(units)]


def _half_with_min(d: np.ndarray, factor: int) -> np.ndarray:
    """Halves d as bytes [..., 2] -> u32 [..., 1] of d and m = -factor * d as halves."""
    value = np.ascontiguousarray(d).view(np.float16)
    with np.errstate(over="ignore", invalid="ignore"):
        m = (value.astype(np.float32) * np.float32(-factor)).astype(np.float16)
    if not np.isfinite(m).all():
        raise GGUFError(f"scale of a block: found one beyond {65504 // factor}, which cannot be a quantised weight")
    return _words(np.concatenate([value, m], axis=-1).view(np.uint8))


def _pack_q4_1(units: np.ndarray) -> list[np.ndarray]:
    return [_halved_nibbles(units[..., 4:20]), _words(units[..., 0:4])]


def _pack_q4_0(units: np.ndarray) -> list[np.ndarray]:
    return [_halved_nibbles(units[..., 2:18]), _half_with_min(units[..., 0:2], 8)]


def _q5_bits(bits: np.ndarray) -> np.ndarray:
    """The u32 of fifth bits as bytes [..., 4], bit i of weight i -> bytes [..., 32]."""
    return np.unpackbits(bits, axis=-1, bitorder="little")


def _pack_q5_1(units: np.ndarray) -> list[np.ndarray]:
    return [_halved_nibbles(units[..., 8:24]), _words(units[..., 0:4]), _fifth_bits(_q5_bits(units[..., 4:8]))]


def _pack_q5_0(units: np.ndarray) -> list[np.ndarray]:
    return [
        _halved_nibbles(units[..., 6:22]),
        _half_with_min(units[..., 0:2], 16),
        _fifth_bits(_q5_bits(units[..., 2:6])),
    ]


def _pack_iq4_nl(units: np.ndarray) -> list[np.ndarray]:
    return [_halved_nibbles(units[..., 2:18]), _two_halves(units)]


def _pack_f16(units: np.ndarray) -> list[np.ndarray]:
    """F16 and BF16: plane p of a sub-block holds weights 8p..8p+7."""
    words = _words(units)  # [rows, units, 2, 16]
    return [words.reshape(*words.shape[:2], 8, 4)]


def _pack_f32(units: np.ndarray) -> list[np.ndarray]:
    words = _words(units)  # [rows, units, 2, 32]
    return [words.reshape(*words.shape[:2], 16, 4)]


PACKERS: dict[T, Callable[[np.ndarray], list[np.ndarray]]] = {
    T.F32: _pack_f32,
    T.F16: _pack_f16,
    T.BF16: _pack_f16,
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
}
