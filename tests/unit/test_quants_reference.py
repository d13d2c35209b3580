"""One block of every format worked out by hand, against the `gguf` package that the other tests take as the reference.

Bytes are built by offset, expected values are numbers found on paper from llama.cpp's `ggml-common.h` block layouts:
they would still hold if the package changed. The elements chosen sit on edges: nibble halves, fifth and sixth bits,
sub-blocks 0 to 3 and 4 to 7 of the packed 6-bit scales, signed scales.
"""

import gguf
import numpy as np
import pytest

from tests.reference import blocks

ONE, TWO, HALF, MINUS_HALF, QUARTER, MINUS_ONE = b"\0\x3c", b"\0\x40", b"\0\x38", b"\0\xb8", b"\0\x34", b"\0\xbc"


def block(size: int, parts: dict[int, bytes]) -> bytes:
    """Zeros with `parts` written at their offsets."""
    data = bytearray(size)
    for offset, content in parts.items():
        data[offset : offset + len(content)] = content
    assert len(data) == size
    return bytes(data)


# type -> (block, value of all elements not listed, {element: value}); None: the others differ and are not compared
BLOCKS = {
    # 1.5 = 3fc00000, little-endian
    "F32": (bytes.fromhex("0000c03f"), None, {0: 1.5}),
    # c000 = -2; 0001 = the least subnormal, 2^-24; 7bff = the largest, 65504
    "F16": (bytes.fromhex("00c0"), None, {0: -2.0}),
    # bf80 is the upper half of bf800000 = -1
    "BF16": (bytes.fromhex("80bf"), None, {0: -1.0}),
    # d 0.5; int8 127, -128, -1, 1
    "Q8_0": (
        block(34, {0: HALF, 2: b"\x7f\x80\xff", 33: b"\x01"}),
        0.0,
        {0: 63.5, 1: -64.0, 2: -0.5, 31: 0.5},
    ),
    # d 2; q = nibble - 8. Byte 0 = f0: element 0 low nibble 0, element 16 high nibble 15; byte 15 = 19: 9 and 1.
    # Elsewhere nibble 0: (0 - 8) * 2
    "Q4_0": (
        block(18, {0: TWO, 2: b"\xf0\x8f", 17: b"\x19"}),
        -16.0,
        {0: -16.0, 16: 14.0, 1: 14.0, 17: 0.0, 15: 2.0, 31: -14.0},
    ),
    # d 0.5, m -1; byte 0 = 3f: elements 0 (15) and 16 (3); byte 15 = e2: elements 15 (2) and 31 (14)
    "Q4_1": (
        block(20, {0: HALF, 2: MINUS_ONE, 4: b"\x3f", 19: b"\xe2"}),
        -1.0,
        {0: 6.5, 16: 0.5, 15: 0.0, 31: 6.0},
    ),
    # d 1; fifth bits 80010001 (little-endian 01 00 01 80): elements 0, 16 and 31. q - 16.
    # Byte 0 = 5a: element 0 = 10 + 16, element 16 = 5 + 16; byte 1 = c3 without fifth bits: 3, 12; byte 15 = f7:
    # element 15 = 7, element 31 = 15 + 16
    "Q5_0": (
        block(22, {0: ONE, 2: b"\x01\x00\x01\x80", 6: b"\x5a\xc3", 21: b"\xf7"}),
        -16.0,
        {0: 10.0, 16: 5.0, 1: -13.0, 17: -4.0, 15: -9.0, 31: 15.0},
    ),
    # d 0.25, m 2; fifth bits 00028002 (02 80 02 00): elements 1, 15, 17.
    # Byte 1 = 0f: 15 + 16, 0 + 16; byte 15 = 80: 0 + 16, 8
    "Q5_1": (
        block(24, {0: QUARTER, 2: TWO, 4: b"\x02\x80\x02\x00", 9: b"\x0f", 23: b"\x80"}),
        2.0,
        {1: 9.75, 17: 6.0, 15: 6.0, 31: 4.0, 0: 2.0, 16: 2.0},
    ),
    # 2^(129 - 128) = 2 times twice the number; byte 1 = f7: elements 0 (7: 12) and 16 (15: -12); byte 16 = a5: elements
    # 15 (5: 6) and 31 (10: -2)
    "MXFP4": (
        block(17, {0: b"\x81", 1: b"\xf7", 16: b"\xa5"}),
        0.0,
        {0: 24.0, 16: -24.0, 15: 12.0, 31: -4.0},
    ),
    # d 0.5; for each 32 weights four rows of the grid and a word of signs and scale. Rows 01, 00, 00, 00: row 1 is 43
    # and seven 8, row 0 eight 8. Word 30000001: weight 0 negative, and weight 7, so that their number is even; s 3:
    # scale 0.5 * 3.5 / 4 = 0.4375. Elsewhere s 0: 0.0625
    "IQ2_XXS": (
        block(66, {0: HALF, 2: b"\x01", 6: b"\x01\x00\x00\x30"}),
        0.5,
        {0: -18.8125, 7: -3.5} | {i: 3.5 for i in range(32) if i not in (0, 7)},
    ),
    # d 0.5; 16 bits for each 8 weights, 8001: row 1, sign 40: weights 6 and 7; last 0002: row 2: 25, 25, then 8
    # scales, a nibble for 16 weights: byte 66 = 50: 0 and 5: 0.5 * 5.5 / 4; byte 73 = 10: 1: 0.5 * 1.5 / 4 = 0.1875
    "IQ2_XS": (
        block(74, {0: HALF, 2: b"\x01\x80", 64: b"\x02\x00", 66: b"\x50", 73: b"\x10"}),
        None,
        {0: 2.6875, 1: 0.5, 6: -0.5, 7: -0.5, 8: 0.5, 16: 5.5, 31: 5.5, 32: 0.5, 248: 4.6875, 249: 4.6875, 250: 1.5},
    ),
    # d 0.5; rows 01 (byte 2) and, with high bits c0 of byte 73, row 768 of the last 8 weights: 8 43 8 25 8 8 43 25
    # signs: byte 34 = 81: weights 0 and 7; byte 65 = 08: weight 251. Scales: byte 74 = 20: 0 and 2; byte 81 = 10: 1
    "IQ2_S": (
        block(82, {0: HALF, 2: b"\x01", 34: b"\x81", 65: b"\x08", 73: b"\xc0", 74: b"\x20", 81: b"\x10"}),
        None,
        {0: -2.6875, 1: 0.5, 7: -0.5, 16: 2.5, 32: 0.5, 248: 1.5, 249: 8.0625, 251: -4.6875, 255: 4.6875, 240: 1.5},
    ),
    # d 0.5; a row for 4 weights: byte 2 = 01: 20 4 4 4; byte 65 = ff: row 255: 4 28 52 62; words from 66: 10000002:
    # weights 1 and 7 negative, s 1: 0.5 * 1.5 / 2 = 0.375; elsewhere s 0: 0.125
    "IQ3_XXS": (
        block(98, {0: HALF, 2: b"\x01", 65: b"\xff", 66: b"\x02\x00\x00\x10"}),
        None,
        {0: 7.5, 1: -1.5, 2: 1.5, 7: -1.5, 8: 1.5, 32: 0.5, 252: 0.5, 253: 3.5, 254: 6.5, 255: 7.75},
    ),
    # d 0.5; byte 2 = 01: 3 1 1 1; with ninth bits 80 of byte 73 the last row is 256: 7 5 9 5; signs: byte 74 = 02:
    # weight 1; byte 105 = 80: weight 255. Scales: byte 106 = 20: s 0 and 2 of sub-blocks 0, 1; byte 109 = 30: s 3 of 7
    "IQ3_S": (
        block(110, {0: HALF, 2: b"\x01", 73: b"\x80", 74: b"\x02", 105: b"\x80", 106: b"\x20", 109: b"\x30"}),
        None,
        {0: 1.5, 1: -0.5, 4: 0.5, 32: 2.5, 64: 0.5, 224: 3.5, 252: 24.5, 253: 17.5, 254: 31.5, 255: -17.5},
    ),
    # d 0.5 at 80, dmin 0.25 at 82; scale bytes: s0 = 21: sc 1, mn 2; s3 = f4: 4, 15; s15 = 0f: 15, 0
    # quants from byte 16: byte l of 32, bits 2g: weight 32g + l; b16 = e4: elements 0 (0), 32 (1), 64 (2), 96 (3);
    # b47 = c9: elements 31 (1), 63 (2), 95 (0), 127 (3); b[16 + 63] = 80: element 255 (2), 223 (0)
    # scale of element e: e / 16, so elements 48 to 63 have s3, 240 to 255 s15; s1, s2, .. are 0
    "Q2_K": (
        block(84, {0: b"\x21", 3: b"\xf4", 15: b"\x0f", 16: b"\xe4", 47: b"\xc9", 79: b"\x80", 80: HALF, 82: QUARTER}),
        None,
        {0: -0.5, 1: -0.5, 32: 0.0, 63: 0.25, 62: -3.75, 31: 0.0, 255: 15.0, 254: 0.0},
    ),
    # d 0.5 at 108; third bits from byte 0: byte l, bit g: weight 32g + l, off: 4 less; quants from byte 32 as Q2_K's
    # scales from byte 96, less 32: b96 = 53: sc0 = 3, sc8 = 5; b103 = a1: sc7 = 1, sc15 = 10; b104 = 21: sc0 += 1 << 4,
    # sc8 += 2 << 4; b107 = 8c: sc7 += 3 << 4, sc15 += 2 << 4: sc0 = 19, sc7 = 49, sc8 = 37, sc15 = 42
    # b0 = 11: elements 0 and 128 have their third bit; b31 = 80: element 255
    # b32 = 03: element 0 = 3; b63 = 40: element 127 (1 - 4); b64 = 02: element 128 = 2; b95 = 80: element 255 = 2
    "Q3_K": (
        block(
            110,
            {
                0: b"\x11",
                31: b"\x80",
                32: b"\x03",
                63: b"\x40",
                64: b"\x02",
                95: b"\x80",
                96: b"\x53",
                103: b"\xa1",
                104: b"\x21",
                107: b"\x8c",
                108: HALF,
            },
        ),
        None,
        {
            0: -19.5,  # 0.5 * -13 * 3
            1: 26.0,  # 0.5 * -13 * -4
            127: -25.5,  # 0.5 * 17 * -3
            128: 5.0,  # 0.5 * 5 * 2
            129: -10.0,
            255: 10.0,  # 0.5 * 10 * 2
            240: -20.0,
            32: 64.0,  # 0.5 * -32 * -4
        },
    ),
    # d 0.5, dmin 0.25. Scale bytes s0..s11:
    #   s0 = c1: sc0 = 1; s3 = 7f: sc3 = 63; s4 = 82: min0 = 2; s7 = ff: min3 = 63
    #   j = 4: sc4 = low(s8) | (s0 >> 6) << 4 = 5 | 3 << 4 = 53,
    #          min4 = high(s8) | (s4 >> 6) << 4 = 10 | 2 << 4 = 42, s8 = a5
    #   j = 7: sc7 = low(s11) | (s3 >> 6) << 4 = 1 | 1 << 4 = 17,
    #          min7 = high(s11) | (s7 >> 6) << 4 = 0 | 3 << 4 = 48, s11 = 01
    # quants from byte 16: sub-blocks 2n (low) and 2n + 1 (high) share 32 bytes
    #   b16 = b7: element 0 = 7, element 32 = 11;   b[16 + 32 + 31] = f4: element 95 = 4, element 127 = 15
    #   b[16 + 64] = 9e: element 128 = 14, 160 = 9; b[16 + 96 + 31] = d3: element 223 = 3, element 255 = 13
    # j 1, 2, 5, 6 have scale and minimum 0 here, so their elements are 0
    "Q4_K": (
        block(
            144,
            {
                0: HALF,
                2: QUARTER,
                4: bytes.fromhex("c1 00 00 7f 82 00 00 ff a5 00 00 01"),
                16: b"\xb7",
                79: b"\xf4",
                80: b"\x9e",
                143: b"\xd3",
            },
        ),
        None,
        {
            0: 3.0,  # 0.5 * 1 * 7 - 0.25 * 2
            1: -0.5,
            32: 0.0,
            95: 0.0,
            127: 456.75,  # 0.5 * 63 * 15 - 0.25 * 63
            96: -15.75,
            128: 360.5,  # 0.5 * 53 * 14 - 0.25 * 42
            129: -10.5,
            160: 0.0,
            223: 0.0,
            255: 98.5,  # 0.5 * 17 * 13 - 0.25 * 48
            224: -12.0,
        },
    ),
    # d 1, dmin -0.5, scale bytes: s1 = 42: sc1 = 2; s5 = c3: min1 = 3;
    #   s9 = 98: sc5 = 8 | (s1 >> 6) << 4 = 24, min5 = 9 | (s5 >> 6) << 4 = 57
    # fifth bits from byte 16: byte l, bit j. b16 = 02: element 0 of sub-block 1; b47 = 20: element 31 of sub-block 5
    # quants from byte 48: b48 = c5: sub-blocks 0 (5) and 1 (12 + 16 = 28);
    #   b[48 + 64 + 31] = 70: sub-blocks 4 (0) and 5 (7 + 16 = 23)
    "Q5_K": (
        block(
            176,
            {
                0: ONE,
                2: MINUS_HALF,
                4: bytes.fromhex("00 42 00 00 00 c3 00 00 00 98 00 00"),
                16: b"\x02",
                47: b"\x20",
                48: b"\xc5",
                143: b"\x70",
            },
        ),
        None,
        {
            0: 0.0,
            32: 57.5,  # 2 * 28 + 0.5 * 3
            33: 1.5,
            159: 0.0,
            191: 580.5,  # 24 * 23 + 0.5 * 57
            160: 28.5,
            255: 0.0,
        },
    ),
    # d 0.5 at 208; scales int8 from 192, one per 16 elements: sc0 = 1, sc3 = -1, sc7 = 2, sc8 = -128, sc15 = 127
    # element 0 (h 0, g 0): low b0 & 15 = 3, high b128 & 3 = 2: 35 - 32 = 3
    # element 63 (h 0, g 1, l 31): low b63 & 15 = 15, high b159 >> 2 & 3 = 3: 63 - 32 = 31, scale 3
    # element 127 (h 0, g 3, l 31): low b63 >> 4 = 1, high b159 >> 6 = 1: 17 - 32 = -15, scale 7;  b63 = 1f, b159 = 4c
    # element 128 (h 1, g 0, l 0): low b64 & 15 = 0, high b160 & 3 = 0: -32, scale 8
    # element 255 (h 1, g 3, l 31): low b127 >> 4 = 14, high b191 >> 6 = 2: 46 - 32 = 14, scale 15
    "Q6_K": (
        block(
            210,
            {
                0: b"\x03",
                63: b"\x1f",
                127: b"\xe0",
                128: b"\x02",
                159: b"\x4c",
                191: b"\x80",
                192: bytes.fromhex("01 00 00 ff 00 00 00 02 80 00 00 00 00 00 00 7f"),
                208: HALF,
            },
        ),
        None,
        {
            0: 1.5,
            1: -16.0,
            16: 0.0,
            63: -15.5,
            48: 16.0,
            127: -15.0,
            128: 2048.0,
            255: 889.0,  # 0.5 * 127 * 14
            240: -2032.0,  # 0.5 * 127 * -32
        },
    ),
    # d 2, table index as Q4_0's nibbles: byte 0 = f0: K[0] = -127, K[15] = 113; byte 15 = 78: K[8] = 1, K[7] = -10
    "IQ4_NL": (
        block(18, {0: TWO, 2: b"\xf0", 17: b"\x78"}),
        -254.0,
        {0: -254.0, 16: 226.0, 15: 2.0, 31: -20.0},
    ),
    # d 0.5; high scale bits hi = 8001 (01 80): sub-block 0: 1, sub-block 7: 2; low scale nibbles: byte 0 = f4:
    # sub-blocks 0 (4) and 1 (15); byte 3 = 90: sub-blocks 6 (0) and 7 (9). ls0 = 4 + 16 = 20, ls1 = 15,
    # ls7 = 9 + 32 = 41, the others 0; the scale is d * (ls - 32)
    # quants from byte 8, 16 bytes per sub-block, nibbles as Q4_0: b8 = 9f: elements 0 (15 -> 113), 16 (9 -> 13)
    # b[8 + 16 + 15] = 61: elements 47 (1 -> -104), 63 (6 -> -22); b[8 + 112 + 15] = d8: 239 (8 -> 1), 255 (13 -> 69)
    "IQ4_XS": (
        block(136, {0: HALF, 2: b"\x01\x80", 4: b"\xf4\x00\x00\x90", 8: b"\x9f", 39: b"\x61", 135: b"\xd8"}),
        None,
        {
            0: -678.0,  # 0.5 * -12 * 113
            16: -78.0,
            1: 762.0,  # 0.5 * -12 * -127
            47: 884.0,  # 0.5 * -17 * -104
            63: 187.0,  # 0.5 * -17 * -22
            64: 2032.0,  # 0.5 * -32 * -127
            239: 4.5,  # 0.5 * 9 * 1
            255: 310.5,
            224: -571.5,
        },
    ),
}


def test_every_supported_type_has_a_block():
    assert set(BLOCKS) == set(blocks.TYPES)


@pytest.mark.parametrize("type", BLOCKS)
def test_hand_computed_block(type):
    data, others, expected = BLOCKS[type]
    length, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type]]
    assert len(data) == size
    values = blocks.dequantize(np.frombuffer(data, np.uint8)[None], type)[0]
    assert values.shape == (length,)
    assert {i: values[i] for i in expected} == expected
    if others is not None:
        assert all(values[i] == others for i in range(length) if i not in expected)


@pytest.mark.parametrize(
    ("bits", "value"), [("0000", 0.0), ("0100", 2.0**-24), ("ff7b", 65504.0), ("0080", -0.0), ("ff03", 1023 * 2.0**-24)]
)
def test_half_edges(bits, value):
    assert blocks.dequantize(np.frombuffer(bytes.fromhex(bits), np.uint8)[None], "F16")[0, 0] == value


@pytest.mark.parametrize(("bits", "value"), [("0100", 2.0**-133), ("7f7f", 255 * 2.0**120), ("403f", 0.75)])
def test_bf16_edges(bits, value):
    assert blocks.dequantize(np.frombuffer(bytes.fromhex(bits), np.uint8)[None], "BF16")[0, 0] == value


@pytest.mark.parametrize("std", [0.02, 1.0])
@pytest.mark.parametrize("type", blocks.TYPES)
def test_random_blocks_have_the_wanted_size(type, std):
    rows, cols = 24, 1024
    data = blocks.random_blocks(np.random.default_rng(3), rows, cols, type, std)
    length, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type]]
    assert data.dtype == np.uint8 and data.shape == (rows, cols // length * size)
    values = blocks.dequantize(data, type)
    assert values.shape == (rows, cols) and np.isfinite(values).all()
    assert 0.8 < values.std() / std < 1.25
    assert abs(values.mean()) < 0.1 * std
    np.testing.assert_array_equal(data, blocks.random_blocks(np.random.default_rng(3), rows, cols, type, std))


def test_random_blocks_refuse_a_cut_block():
    with pytest.raises(ValueError, match="Q4_K needs a multiple of 256"):
        blocks.random_blocks(np.random.default_rng(0), 1, 128, "Q4_K", 1.0)
