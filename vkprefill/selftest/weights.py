"""Random weights in a format of GGUF, with their values in float64 by the `gguf` package."""

from __future__ import annotations

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

from vkprefill.gguf.quants import LAYOUT_OF
from vkprefill.gguf.tensors import HALF_OFFSETS

SCALE = 2.0**-5  # of a block, about: weights and their products then lie near 1
# One format for each layout that kernels read; the others are packed into the same.
TYPES = tuple({layout: kind for kind, layout in LAYOUT_OF.items()}.values())


def random_weights(
    rng: np.random.Generator, rows: int, columns: int, kind: GGMLQuantizationType
) -> tuple[np.ndarray, np.ndarray]:
    """(blocks uint8 [rows, row bytes], values float64 [rows, columns]). Quants are any bits, scales halves near SCALE,
    of either sign where a format has no minimum.
    """
    if kind == GGMLQuantizationType.MXFP4:
        length, num_bytes = GGML_QUANT_SIZES[kind]
        blocks = rng.integers(0, 256, (rows, columns // length, num_bytes), np.uint8)
        blocks[..., 0] = rng.integers(-1, 2, blocks.shape[:2]) + 128 + int(np.log2(SCALE))
        data = blocks.reshape(rows, -1)
    elif kind not in HALF_OFFSETS:
        values = rng.standard_normal((rows, columns)).astype(np.float32)
        if kind == GGMLQuantizationType.F16:
            data = values.astype(np.float16).view(np.uint8)
        elif kind == GGMLQuantizationType.BF16:
            data = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        else:
            data = values.view(np.uint8)
    else:
        length, num_bytes = GGML_QUANT_SIZES[kind]
        blocks = rng.integers(0, 256, (rows, columns // length, num_bytes), np.uint8)
        offsets = HALF_OFFSETS[kind]
        for offset in offsets:
            scales = rng.uniform(0.5, 1.5, blocks.shape[:2]) * SCALE
            if len(offsets) == 1:
                scales *= rng.choice([-1.0, 1.0], scales.shape)
            blocks[..., offset : offset + 2] = scales.astype(np.float16)[..., None].view(np.uint8)
        data = blocks.reshape(rows, -1)
    return data, dequantize(data, kind).astype(np.float64)
