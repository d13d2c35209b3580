"""Random weights in every GGUF block format, for tests of kernels that read them, and their values in float64.

All quant and scale-index bits are random, so every bit path of a decoder is taken; only the half-precision scales are
chosen, to keep the values finite and near a wanted size.
"""

import functools

import gguf
import numpy as np

# Byte offsets in a block of the float16 scales, and of the float16 minimums (0 or 1 per block).
_SCALE_OFFSETS = {
    "Q8_0": (0, None),
    "Q4_0": (0, None),
    "Q4_1": (0, 2),
    "Q5_0": (0, None),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108, None),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208, None),
    "IQ4_NL": (0, None),
    "IQ4_XS": (0, None),
    "MXFP4": (0, None),
    "IQ2_XXS": (0, None),
    "IQ2_XS": (0, None),
    "IQ2_S": (0, None),
    "IQ3_XXS": (0, None),
    "IQ3_S": (0, None),
}
# Minimum as a multiple of the scale that centres the values: half the largest quant. The K formats subtract it.
_CENTRE = {"Q4_1": -7.5, "Q5_1": -15.5, "Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}
TYPES = ("F32", "F16", "BF16", *_SCALE_OFFSETS)


def block_length(type: str) -> int:
    """Weights of a block; 1 for F32, F16 and BF16."""
    return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type]][0]


def random_blocks(rng: np.random.Generator, rows: int, cols: int, type: str, std: float = 1.0) -> np.ndarray:
    """Random valid data, uint8 [rows, row bytes], values with a standard deviation near `std` and a mean near 0.

    cols must be a multiple of the format's block length. Scales differ by block and, where the format has no minimum,
    also in sign. A small `std` makes float16 scales subnormal, as in real files."""
    block_length, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type]]
    if cols % block_length:
        raise ValueError(f"{cols} columns: {type} needs a multiple of {block_length}")
    if type in ("F32", "F16", "BF16"):
        values = (rng.standard_normal((rows, cols)) * std).astype(np.float32)
        if type == "F16":
            values = values.astype(np.float16)
        if type == "BF16":
            return (values.view(np.uint32) >> 16).astype("<u2").view(np.uint8)
        return values.view(np.uint8)

    data = rng.integers(0, 256, (rows, cols // block_length, block_bytes), np.uint8)
    if type == "MXFP4":
        std *= 1.45  # what is lost where scales are rounded down, in the mean square
    scales = std / _unit_std(type) * rng.uniform(0.5, 1.4, data.shape[:2])  # their mean square is near 1
    if _SCALE_OFFSETS[type][1] is None:
        scales *= rng.choice([-1.0, 1.0], scales.shape)
    _set_scales(data, type, scales)
    return data.reshape(rows, -1)


def every_half() -> np.ndarray:
    """float16 [63488]: each finite one, both signs, subnormal ones too."""
    positive = np.arange(0x7C00, dtype=np.uint16)
    return np.concatenate([positive, positive | 0x8000]).view(np.float16)


def dequantize(data: np.ndarray, type: str) -> np.ndarray:
    """data uint8 [rows, row bytes] -> float64 [rows, cols], by the `gguf` package."""
    if type == "F32":
        return np.ascontiguousarray(data).view("<f4").astype(np.float64)
    if type == "F16":
        return np.ascontiguousarray(data).view("<f2").astype(np.float64)
    return gguf.quants.dequantize(data, gguf.GGMLQuantizationType[type]).astype(np.float64)


def _set_scales(data: np.ndarray, type: str, scales: np.ndarray) -> None:
    if type == "MXFP4":  # powers of two: the next below
        data[..., 0] = np.floor(np.log2(np.abs(scales))) + 128
        return
    scale_at, minimum_at = _SCALE_OFFSETS[type]
    data[..., scale_at : scale_at + 2] = scales.astype("<f2")[..., None].view(np.uint8)
    if minimum_at is not None:
        minimums = (scales * _CENTRE[type]).astype("<f2")
        data[..., minimum_at : minimum_at + 2] = minimums[..., None].view(np.uint8)


@functools.cache
def _unit_std(type: str) -> float:
    """Standard deviation of random blocks of this type with scale 1, measured on 16,384 values or more."""
    _, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type]]
    data = np.random.default_rng(0).integers(0, 256, (64, 8, block_bytes), np.uint8)
    _set_scales(data, type, np.ones(data.shape[:2]))
    return float(dequantize(data.reshape(64, -1), type).std())
