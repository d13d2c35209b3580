"""Packing of weights, undone by an unpacker written from the comments at the head of shaders/include/quant_*.glsl.

Every step of both sides is exact or rounds once in float32, so the weights must equal the `gguf` package's bit for bit.
"""

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as T

from tests.reference import blocks
from vkprefill.errors import GGUFError
from vkprefill.gguf.grids import grid_words
from vkprefill.gguf.quants import LAYOUT_OF, LAYOUTS, layout_of, pack_rows, packed_row_bytes, padded_rows

IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
MXFP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


class Planes:
    """Reads the planes of all units one after another: 32 rows of `width` words each."""

    def __init__(self, packed: np.ndarray, rows: int, units: int) -> None:
        self.words = packed.reshape(rows // 32, units, -1)
        self.at = 0

    def take(self, planes: int, width: int) -> np.ndarray:
        """u32 [rows, units, planes, width]"""
        count = planes * 32 * width
        part = self.words[:, :, self.at : self.at + count].reshape(*self.words.shape[:2], planes, 32, width)
        self.at += count
        return part.transpose(0, 3, 1, 2, 4).reshape(-1, self.words.shape[1], planes, width)


def byte(words, c):
    return words >> np.uint32(8 * c) & np.uint32(255)


def nibbles(words: np.ndarray) -> np.ndarray:
    """[.., 4] -> [.., 32]: word p, byte c: weight 8p + c in the low nibble, 8p + 4 + c in the high one."""
    out = np.empty((*words.shape[:-1], 32), np.uint32)
    for p in range(4):
        for c in range(4):
            out[..., 8 * p + c], out[..., 8 * p + 4 + c] = byte(words[..., p], c) & 15, byte(words[..., p], c) >> 4
    return out


def fifth_bits(word: np.ndarray) -> np.ndarray:
    """[..] -> [.., 32]: byte c, bit p: weight 8p + c; bit 4 + p: weight 8p + 4 + c."""
    out = np.empty((*word.shape, 32), np.uint32)
    for p in range(4):
        for c in range(4):
            out[..., 8 * p + c], out[..., 8 * p + 4 + c] = byte(word, c) >> p & 1, byte(word, c) >> (4 + p) & 1
    return out


def high_pairs(words: np.ndarray) -> np.ndarray:
    """[.., 2] -> [.., 32]: byte c, bits 2p and 2p + 1: weight 8p + c (first word), 8p + 4 + c (second)."""
    out = np.empty((*words.shape[:-1], 32), np.uint32)
    for p in range(4):
        for c in range(4):
            for half in range(2):
                out[..., 8 * p + 4 * half + c] = byte(words[..., half], c) >> (2 * p) & 3
    return out


def half(bits: np.ndarray) -> np.ndarray:
    return bits.astype(np.uint16).view(np.float16).astype(np.float32)


def halves(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return half(words & 0xFFFF), half(words >> 16)


def unpack_floats(planes, kind):
    if kind == "f32":  # 16 planes of 4: weights 4i..4i+3 of the unit in plane i
        return planes.take(16, 4).view(np.float32).reshape(-1, planes.words.shape[1], 64)
    words = planes.take(8, 4)
    low, high = (
        halves(words) if kind == "f16" else ((words << 16).view(np.float32), (words & 0xFFFF0000).view(np.float32))
    )
    return np.stack([low, high], axis=-1).reshape(len(words), words.shape[1], 64)


def unpack_q8_0(planes):
    q = planes.take(4, 4).reshape(-1, planes.words.shape[1], 2, 2, 4)  # sub-block, first or second, p
    values = np.stack([byte(q, c) for c in range(4)], axis=-1)  # .., sub-block, half, p, c
    values = np.swapaxes(values, 3, 4).reshape(*q.shape[:3], 32)
    d = np.stack(halves(planes.take(1, 1)[..., 0, 0]), axis=-1)[..., None]
    return (values.astype(np.float32) - 128) * d


def unpack_q4_1(planes):
    q = nibbles(planes.take(2, 4))
    d, m = halves(planes.take(2, 1))
    return q.astype(np.float32) * d + m


def unpack_q5_1(planes):
    q = nibbles(planes.take(2, 4))
    d, m = halves(planes.take(2, 1))
    return (q | fifth_bits(planes.take(2, 1)[..., 0]) << 4).astype(np.float32) * d + m


def unpack_iq4_nl(planes):
    q = nibbles(planes.take(2, 4))
    d = np.stack(halves(planes.take(1, 1)[..., 0, 0]), axis=-1)[..., None]
    return IQ4_VALUES[q] * d


def k_header(planes):
    """x = d, dmin; y, z = low 4 bits of the 8 scales, of the 8 mins; w = their high 2 bits, mins from bit 16 on."""
    x, y, z, w = np.moveaxis(planes.take(1, 4)[:, :, 0], -1, 0)
    d, dmin = halves(x)
    scales = np.stack([(y >> 4 * j & 15) | (w >> 2 * j & 3) << 4 for j in range(8)], axis=-1)
    mins = np.stack([(z >> 4 * j & 15) | (w >> (16 + 2 * j) & 3) << 4 for j in range(8)], axis=-1)
    return (d[..., None] * scales)[..., None].astype(np.float32), (dmin[..., None] * mins)[..., None].astype(np.float32)


def unpack_q4_k(planes):
    scale, minimum = k_header(planes)
    return scale * nibbles(planes.take(8, 4)).astype(np.float32) - minimum


def unpack_q5_k(planes):
    scale, minimum = k_header(planes)
    low = nibbles(planes.take(8, 4))
    return scale * (low | fifth_bits(planes.take(8, 1)[..., 0]) << 4).astype(np.float32) - minimum


def unpack_mxfp4(planes):
    q = nibbles(planes.take(4, 4))
    exponents = planes.take(1, 1)[..., 0, 0]
    e = np.stack([byte(exponents, c) for c in range(4)], axis=-1)
    return MXFP4_VALUES[q] * np.ldexp(np.float32(1), e.astype(np.int32) - 128)[..., None]


def signs(words: np.ndarray, stored: int = 32) -> np.ndarray:
    """[..] -> [.., 32], 1 and -1, bits as fifth_bits has them; of 28 stored: the last of each 8 makes them even."""
    negative = fifth_bits(words)
    if stored == 28:
        negative[..., 7::8] = negative.reshape(*words.shape, 4, 8)[..., :7].sum(axis=-1) % 2
    return np.float32(1) - 2 * negative.astype(np.float32)


def grid(name: str) -> np.ndarray:
    """The rows of a format's grid, by the `gguf` package."""
    quant = getattr(gguf.quants, name)
    quant.init_grid()
    return np.asarray(quant.grid, np.float32).reshape(quant.grid_shape)


def with_scales(values: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """values [.., 8, 32] by scales [.., 8 or 16]."""
    return (values.reshape(*scales.shape, -1) * scales[..., None]).reshape(values.shape)


def parts(words: np.ndarray, bits: int) -> np.ndarray:
    """u32 [.., n] -> [.., n * 32 / bits], from the low end on."""
    return np.stack([words >> shift & (1 << bits) - 1 for shift in range(0, 32, bits)], axis=-1).reshape(
        *words.shape[:-1], -1
    )


def unpack_iq2_xxs(planes):
    rows, word = np.moveaxis(planes.take(8, 2), -1, 0)
    d = half(planes.take(1, 1)[..., 0, 0] & 0xFFFF)
    values = grid("IQ2_XXS")[parts(rows[..., None], 8)].reshape(*rows.shape, 32) * signs(word, 28)
    return with_scales(values, d[..., None] * ((word >> 28).astype(np.float32) + np.float32(0.5)) / 4)


def unpack_iq2_xs(planes):
    rows, word = np.moveaxis(planes.take(8, 2), -1, 0)
    ninth, second = np.moveaxis(planes.take(1, 2), -1, 0)
    d = half(planes.take(1, 1)[..., 0, 0] & 0xFFFF)
    row = parts(rows[..., None], 8) | parts(ninth, 1).reshape(*rows.shape, 4) << 8
    values = grid("IQ2_XS")[row].reshape(*rows.shape, 32) * signs(word, 28)
    s = np.stack([word >> 28, parts(second, 4)], axis=-1).reshape(*rows.shape[:2], 16)
    return with_scales(values, d[..., None] * (s.astype(np.float32) + np.float32(0.5)) / 4)


def unpack_iq2_s(planes):
    rows, word = np.moveaxis(planes.take(8, 2), -1, 0)
    header = planes.take(1, 4)[:, :, 0]
    d = half(planes.take(1, 1)[..., 0, 0] & 0xFFFF)
    row = parts(rows[..., None], 8) | parts(header[..., :2], 2).reshape(*rows.shape, 4) << 8
    values = grid("IQ2_S")[row].reshape(*rows.shape, 32) * signs(word)
    return with_scales(values, d[..., None] * (parts(header[..., 2:], 4).astype(np.float32) + np.float32(0.5)) / 4)


def rows_of_four(planes) -> np.ndarray:
    """[rows, units, 8, 8]: the low bits of the grid's rows, in the order of the weights."""
    return np.swapaxes(parts(planes.take(8, 2)[..., None], 8), -1, -2).reshape(-1, planes.words.shape[1], 8, 8)


def unpack_iq3_xxs(planes):
    row, word = rows_of_four(planes), planes.take(8, 1)[..., 0]
    d = half(planes.take(1, 1)[..., 0, 0] & 0xFFFF)
    values = grid("IQ3_XXS")[row].reshape(*word.shape, 32) * signs(word, 28)
    return with_scales(values, d[..., None] * ((word >> 28).astype(np.float32) + np.float32(0.5)) / 2)


def unpack_iq3_s(planes):
    header = planes.take(1, 4)[:, :, 0]
    row, word = rows_of_four(planes), planes.take(8, 1)[..., 0]
    row |= parts(header[..., :2], 1).reshape(row.shape) << 8
    values = grid("IQ3_S")[row].reshape(*word.shape, 32) * signs(word)
    s = parts(header[..., 2:3], 4).astype(np.float32)
    return with_scales(values, half(header[..., 3] & 0xFFFF)[..., None] * (2 * s + 1))


def unpack_q2_k(planes):
    both = np.ascontiguousarray(planes.take(1, 4)).view(np.uint8).astype(np.float32)[:, :, 0]  # [rows, units, 16]
    q = high_pairs(planes.take(8, 2)).astype(np.float32)
    d, dmin = halves(planes.take(1, 1)[..., 0, 0])
    scale, minimum = d[..., None] * (both % 16), dmin[..., None] * (both // 16)
    return (scale[..., None] * q.reshape(*q.shape[:2], 16, 16) - minimum[..., None]).reshape(q.shape)


def unpack_q3_k(planes):
    x, y, z, w = np.moveaxis(planes.take(1, 4)[:, :, 0], -1, 0)
    low = [byte((x, y)[i // 4 % 2], i % 4) >> (i // 8 * 4) & 15 for i in range(16)]
    sc = np.stack([low[i] | (byte(z, i % 4) >> (2 * (i // 4)) & 3) << 4 for i in range(16)], axis=-1)
    q = high_pairs(planes.take(8, 2)) | fifth_bits(planes.take(8, 1)[..., 0]) << 2
    scale = half(w & 0xFFFF)[..., None] * (sc.astype(np.float32) - 32)
    return (scale[..., None] * (q.astype(np.float32) - 4).reshape(*q.shape[:2], 16, 16)).reshape(q.shape)


def unpack_q6_k(planes):
    scales = np.ascontiguousarray(planes.take(1, 4)).view(np.int8).astype(np.float32)  # [rows, units, 1, 16]
    low = nibbles(planes.take(8, 4))
    q = (low | high_pairs(planes.take(8, 2)) << 4).astype(np.float32) - 32
    d = half(planes.take(1, 1)[..., 0, 0] & 0xFFFF)
    return ((d[..., None] * scales[:, :, 0])[..., None] * q.reshape(*q.shape[:2], 16, 16)).reshape(q.shape)


def unpack_iq4_xs(planes):
    q = nibbles(planes.take(8, 4))
    x, y = np.moveaxis(planes.take(1, 2)[:, :, 0], -1, 0)
    ls = np.stack([(y >> 4 * j & 15) | (x >> (16 + 2 * j) & 3) << 4 for j in range(8)], axis=-1).astype(np.float32) - 32
    return (half(x & 0xFFFF)[..., None] * ls)[..., None] * IQ4_VALUES[q]


UNPACK = {
    "q8_0": unpack_q8_0,
    "q4_1": unpack_q4_1,
    "q5_1": unpack_q5_1,
    "iq4_nl": unpack_iq4_nl,
    "mxfp4": unpack_mxfp4,
    "iq2_xxs": unpack_iq2_xxs,
    "iq2_xs": unpack_iq2_xs,
    "iq2_s": unpack_iq2_s,
    "iq3_xxs": unpack_iq3_xxs,
    "iq3_s": unpack_iq3_s,
    "q2_k": unpack_q2_k,
    "q3_k": unpack_q3_k,
    "q4_k": unpack_q4_k,
    "q5_k": unpack_q5_k,
    "q6_k": unpack_q6_k,
    "iq4_xs": unpack_iq4_xs,
} | {kind: lambda planes, kind=kind: unpack_floats(planes, kind) for kind in ("f32", "f16", "bf16")}


def unpack(packed: np.ndarray, kind: T, rows: int, columns: int) -> np.ndarray:
    """-> float32 [padded rows, columns]; all planes must be used up."""
    layout = layout_of(kind)
    units = -(-columns // layout.unit_weights)
    planes = Planes(packed, padded_rows(rows), units)
    values = UNPACK[layout.name](planes).reshape(padded_rows(rows), -1)
    assert planes.at == layout.unit_words * 32 == planes.words.shape[2]
    return values[:, :columns]


@pytest.mark.parametrize("std", [0.02, 1.0])
@pytest.mark.parametrize("weight_type", blocks.TYPES)
def test_packed_weights_are_the_files(weight_type, std):
    kind = T[weight_type]
    lengths = (256, 768) if blocks.block_length(weight_type) == 256 else (32, 64, 96, 352)
    for rows in (1, 31, 32, 33, 70):
        for columns in lengths:
            data = blocks.random_blocks(np.random.default_rng([rows, columns]), rows, columns, weight_type, std)
            packed = pack_rows(data, kind)
            assert packed.dtype == np.uint32 and packed.nbytes == padded_rows(rows) * packed_row_bytes(kind, columns)
            values = unpack(packed, kind, rows, columns)
            expected = blocks.dequantize(data, weight_type).astype(np.float32)
            np.testing.assert_array_equal(values[:rows], expected, f"{weight_type}, {rows} rows of {columns}")
            assert not values[rows:].any(), "padding rows hold weights"


@pytest.mark.parametrize("weight_type", blocks.TYPES)
def test_padding_rows_are_zero_bits_and_rows_may_be_packed_in_slices(weight_type):
    kind = T[weight_type]
    data = blocks.random_blocks(np.random.default_rng(1), 70, 256, weight_type)
    packed = pack_rows(data, kind)
    np.testing.assert_array_equal(
        packed, np.concatenate([pack_rows(data[:32], kind), pack_rows(data[32:64], kind), pack_rows(data[64:], kind)])
    )
    zeros = pack_rows(np.zeros_like(data[:1]), kind)
    if weight_type == "Q8_0":  # 0 is stored as 128
        assert set(np.unique(zeros)) == {0, 0x80808080}
    else:
        assert not (zeros & 0x7FFFFFFF & ~np.uint32(0x8000)).any()  # signs of zero halves may be set


@pytest.mark.parametrize("name", ["IQ2_XXS", "IQ2_XS", "IQ2_S"])
def test_grids_of_eight(name):
    """Two rows in a word: levels of weights c and 4 + c in bits 0, 1 and 2, 3 of a nibble of byte c."""
    words, levels = grid_words(T[name]), {8: 0, 25: 1, 43: 2}
    for i, row in enumerate(grid(name)):
        nibbles = [byte(words[i // 2], c) >> 4 * (i % 2) & 15 for c in range(4)]
        assert [n & 3 for n in nibbles] + [n >> 2 for n in nibbles] == [levels[int(v)] for v in row]
    assert len(words) * 2 == len(grid(name))


@pytest.mark.parametrize("name", ["IQ3_XXS", "IQ3_S"])
def test_grids_of_four(name):
    words = grid_words(T[name])
    np.testing.assert_array_equal(words.view(np.uint8).reshape(-1, 4), grid(name))


@pytest.mark.parametrize(("weight_type", "largest"), [("Q4_0", 8188.0), ("Q5_0", 4094.0)])
def test_scale_whose_offset_overflows_half_precision_is_refused(weight_type, largest):
    """-8 d or -16 d is stored as a half: up to 65504."""
    kind = T[weight_type]
    data = blocks.random_blocks(np.random.default_rng(1), 3, 64, weight_type)
    for sign in (1, -1):
        data[1, :2] = np.float16(sign * largest).reshape(1).view(np.uint8)
        values = unpack(pack_rows(data, kind), kind, 3, 64)[:3]
        np.testing.assert_array_equal(values, blocks.dequantize(data, weight_type).astype(np.float32))
        data[1, :2] = np.nextafter(np.float16(sign * largest), np.float16(sign * np.inf)).reshape(1).view(np.uint8)
        with pytest.raises(GGUFError, match="scale of a block"):
            pack_rows(data, kind)
        data[1, :2] = 0


@pytest.mark.parametrize("weight_type", ["Q4_0", "Q5_0"])
def test_least_scales_stay_exact(weight_type):
    """Subnormal halves: -8 d and -16 d are exact there too."""
    kind = T[weight_type]
    data = blocks.random_blocks(np.random.default_rng(2), 4, 64, weight_type)
    for i, bits in enumerate((1, 0x8001, 0x03FF, 0x0400)):
        data[i, :2] = np.array([bits], np.uint16).view(np.uint8)
    np.testing.assert_array_equal(
        unpack(pack_rows(data, kind), kind, 4, 64)[:4], blocks.dequantize(data, weight_type).astype(np.float32)
    )


@pytest.mark.parametrize(
    ("weight_type", "row_bytes"),
    [
        ("F32", 4096),
        ("F16", 2048),
        ("BF16", 2048),
        ("Q8_0", 1088),
        ("Q4_0", 640),
        ("Q4_1", 640),
        ("Q5_0", 768),
        ("Q5_1", 768),
        ("IQ4_NL", 576),
        ("IQ4_XS", 544),
        ("MXFP4", 544),
        ("IQ2_XXS", 272),
        ("IQ2_XS", 304),
        ("IQ2_S", 336),
        ("IQ3_XXS", 400),
        ("IQ3_S", 448),
        ("Q2_K", 336),
        ("Q3_K", 448),
        ("Q4_K", 576),
        ("Q5_K", 704),
        ("Q6_K", 848),
    ],
)
def test_bytes_of_a_packed_row(weight_type, row_bytes):
    assert packed_row_bytes(T[weight_type], 1024) == row_bytes


@pytest.mark.parametrize("weight_type", blocks.TYPES)
def test_packed_bytes_are_at_most_a_tenth_more_than_the_files(weight_type):
    if weight_type in ("Q4_0", "Q5_0"):  # two bytes more for 32 weights: the minimum that Q4_1 and Q5_1 have
        assert packed_row_bytes(T[weight_type], 32 * 64) == (18, 22)[weight_type == "Q5_0"] * 64 + 2 * 64
        return
    length, size = gguf.GGML_QUANT_SIZES[T[weight_type]]
    assert packed_row_bytes(T[weight_type], 2048) <= 1.1 * size * (2048 // length), weight_type


def test_a_row_that_ends_in_a_unit_takes_all_of_it():
    assert packed_row_bytes(T.Q8_0, 32) == packed_row_bytes(T.Q8_0, 64) == 68
    assert packed_row_bytes(T.Q8_0, 96) == 136


def test_every_type_has_a_layout_and_every_layout_a_type():
    assert {kind.name for kind in LAYOUT_OF} == set(blocks.TYPES)
    assert {layout_of(kind).name for kind in LAYOUT_OF} == set(LAYOUTS) == set(UNPACK)
    with pytest.raises(KeyError):
        layout_of(T.IQ1_S)
