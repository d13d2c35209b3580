"""A model with its draft on the same device: how much context the draft gets, what is measured before. Or a model that
scores prompts itself: what that takes.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from vkprefill.engine.memory import memory_bill
from vkprefill.engine.model import Model
from vkprefill.engine.row_store import store_bytes
from vkprefill.engine.sizes import Sizes
from vkprefill.gguf.config import ModelConfig
from vkprefill.gguf.file import open_gguf
from vkprefill.specprefill.calibration import has_speed, speed_of
from vkprefill.specprefill.pipeline import check_pair
from vkprefill.specprefill.score_programs import KEPT_BYTES
from vkprefill.specprefill.self_scorer import scoring_layer
from vkprefill.specprefill.settings import SpecPrefillConfig
from vkprefill.vulkan.profiles import LARGEST

# Of the draft where neither the prompt's length nor a context is given; its KV cache should not crowd out the target's.
DRAFT_CONTEXT = 32768


def draft_room(
    path: str | os.PathLike[str],
    spec: SpecPrefillConfig,
    wanted: int | None,
    *,
    kv_type: str,
    prefill_chunk: int | None,
    precision: str,
) -> tuple[int, int]:
    """(context to load a draft with, bytes that it will take at most, with what stays of scoring). wanted: tokens of a
    prompt (None: not known).
    """
    file = open_gguf(path)
    config = ModelConfig.from_gguf(file)
    context = spec.draft_context or min(config.max_position_embeddings, (wanted or DRAFT_CONTEXT) + spec.lookahead)
    sizes = Sizes(config, LARGEST, context, kv_type, prefill_chunk or LARGEST.prefill_chunk, precision != "full")
    return context, memory_bill(file, sizes).total + KEPT_BYTES


def self_room(path: str | os.PathLike[str], wanted: int | None) -> int:
    """Bytes that a model takes beside its context to score prompts itself, of `wanted` tokens (None: not known)."""
    config = ModelConfig.from_gguf(open_gguf(path))
    tokens = min(config.max_position_embeddings, wanted or DRAFT_CONTEXT)
    return store_bytes(tokens, config.hidden_size) + KEPT_BYTES


def prepare_pair(model: Model, draft: Model | None, spec: SpecPrefillConfig, notice: Callable[[Model], None]) -> None:
    """Check the pair, then measure what the break-even guard will ask for and is not known. draft: None where the model
    scores itself.

    notice: called before each measurement. Raises RequestError for a draft that cannot score for this model, and for a
    model that cannot for itself.
    """
    if draft is None:
        scoring_layer(spec, model.config)
    else:
        check_pair(model, draft, spec)
    if spec.break_even:
        for one, given in ((draft, spec.draft_tokens_per_s), (model, spec.target_tokens_per_s)):
            if one is not None and not given and not has_speed(one):
                notice(one)
                speed_of(one)
