"""Precision of prefill's products: which are made of halves, and the room for activations rounded to halves.

Weights and activations are rounded to halves, a token's activations times a power of two that keeps them from overflow;
sums stay float32. Decode, whose products wait for the weights to come from memory, stays float32, and so do runs of a
few rows, which read the weights once for all of them and give the bits of decode one row at a time.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache

from vkprefill.engine.weights import Matrix
from vkprefill.vulkan.buffer import Buffer

log = logging.getLogger("vkprefill")

PRECISIONS = ("auto", "full", "half")
SHORT_RUN = 8  # rows of a program up to which its products stay float32
# Of weights with more digits, or of another range, than halves have. F16's are halves; those of block formats are
# products of a half and a small integer: beyond 65,504 in damaged files only, whose results are not finite then.
FLOAT_LAYOUTS = ("f32", "bf16")


@dataclass(frozen=True)
class HalfRows:
    """Room for one set of activations as halves: words uint32 [T', widest / 2], a row of K columns taking K / 2 words;
    factors float32 [T], by which sums of products with a row are multiplied.
    """

    words: Buffer
    factors: Buffer


def half_for(matrix: Matrix, half: HalfRows | None) -> HalfRows | None:
    """What a product with this matrix reads its halves from; None: it is float32."""
    return None if matrix.layout in FLOAT_LAYOUTS else half


def takes_halves(precision: str, has_dot2: bool) -> bool:
    """Whether a model that is loaded with this one of PRECISIONS makes prefill's products of halves.

    has_dot2: the device has the instruction for them.
    """
    return precision == "half" or precision == "auto" and has_dot2


@cache
def tell_of_detour(device_name: str) -> None:
    """Once for each device: products of halves without the instruction for them."""
    log.warning(
        "precision half: %s has no instruction for sums of products of halves; they are converted, which gives the "
        "same sums and is slower than full",
        device_name,
    )
