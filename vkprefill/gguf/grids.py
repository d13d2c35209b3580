"""Grids: the rows of magnitudes that the IQ2 and IQ3 formats number, in the words that kernels read."""

from __future__ import annotations

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import quants

FORMATS = {
    T.IQ2_XXS: quants.IQ2_XXS,
    T.IQ2_XS: quants.IQ2_XS,
    T.IQ2_S: quants.IQ2_S,
    T.IQ3_XXS: quants.IQ3_XXS,
    T.IQ3_S: quants.IQ3_S,
}


def grid_words(weight_type: T) -> np.ndarray:
    """u32 [n]; of a type without a grid none.

    A row of 4 is the bytes of a word. Of rows of 8, whose magnitudes are 8, 25 and 43, a word has two
    (shaders/include/iq2_values.glsl).
    """
    if weight_type not in FORMATS:
        return np.zeros(0, np.uint32)
    FORMATS[weight_type].init_grid()
    rows = np.asarray(FORMATS[weight_type].grid).reshape(FORMATS[weight_type].grid_shape).astype(np.uint8)
    if rows.shape[1] == 4:
        return rows.view(np.uint32)[:, 0]
    levels = np.searchsorted([8, 25, 43], rows).astype(np.uint8)
    nibbles = levels[:, :4] | levels[:, 4:] << 2
    return (nibbles[0::2] | nibbles[1::2] << 4).view(np.uint32)[:, 0]
