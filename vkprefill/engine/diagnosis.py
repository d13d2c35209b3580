"""Where a NaN or an infinity in a result came from: the first layer whose cache or state holds one."""

from __future__ import annotations

import numpy as np

from vkprefill.engine.cache import Cache
from vkprefill.engine.cache_pool import CachePool
from vkprefill.errors import VkPrefillError

FOUND = "found NaN or infinity"


def not_finite(what: str, pool: CachePool, cache: Cache | None) -> VkPrefillError:
    """The error for a result that is not finite, with the kind of layer and the remedy; cache: what it is of."""
    for layer in range(pool.config.num_hidden_layers) if cache is not None else ():
        if layer in pool.kv:
            if not pool.is_finite(layer, cache):
                if pool.kv_type == "f16":
                    return VkPrefillError(
                        f"{what}: {FOUND}: keys or values of full-attention layer {layer} are beyond what the "
                        'half-precision cache holds (65,504); load with kv_type="f32" (-ctk f32 -ctv f32)'
                    )
                return VkPrefillError(f"{what}: {FOUND}, first in the keys or values of full-attention layer {layer}")
        elif not np.isfinite(pool.read_state(layer)).all():
            return VkPrefillError(f"{what}: {FOUND}, first in the state of gated delta-net layer {layer}")
    return VkPrefillError(f"{what}: {FOUND}: the model's activations overflow float32 on this input")
