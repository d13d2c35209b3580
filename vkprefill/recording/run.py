"""Points of many prompts, recorded to a folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from vkprefill.engine.microscope.record import Wish
from vkprefill.engine.model import Model
from vkprefill.recording.prompts import Prompt
from vkprefill.recording.shards import DTYPES, ShardWriter

HASHED_BYTES = 1 << 24  # read at a time


def recording_facts(model: Model, wish: Wish, prompts_file: bytes, dtype: str, max_bytes: int) -> dict[str, object]:
    """What must be the same for a recording to be gone on with; the beginning of the manifest."""
    tokens = wish.tokens if isinstance(wish.tokens, str) else [wish.tokens.start, wish.tokens.stop, wish.tokens.step]
    return {
        "model": {"file": model.path.name, "sha256": file_hash(model.path), "name": model.config.name},
        "points": {name: list(model.points[name]) for name in wish.names},
        "tokens": tokens,
        "steps": wish.steps,
        "max_tokens": wish.max_tokens,
        "dtype": dtype,
        "max_shard_bytes": max_bytes,
        "prompts_sha256": hashlib.sha256(prompts_file).hexdigest(),
    }


def file_hash(path: Path) -> str:
    """SHA-256 of a file: a few seconds for each gigabyte."""
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while piece := file.read(HASHED_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def record_prompts(
    model: Model,
    prompts: Sequence[Prompt],
    wish: Wish,
    writer: ShardWriter,
    dtype: str,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """All prompts that the writer does not have yet. progress(prompts done, of how many). An array that float16 cannot
    hold has infinities.
    """
    recorder, kind = model.recorder(wish), DTYPES[dtype][1]
    try:
        for number in range(writer.done, len(prompts)):
            if progress:
                progress(number, len(prompts))
            prompt = prompts[number]
            cache = recorder.record(prompt.token_ids)
            with np.errstate(over="ignore"):
                arrays = {name: array.astype(kind) for name, array in cache.items()}
            arrays["tokens"] = cache.tokens.astype(np.int32)
            arrays["token_ids"] = cache.token_ids.astype(np.int32)
            writer.add(prompt.id, {"num_prompt": cache.num_prompt, "num_tokens": len(cache.token_ids)}, arrays)
        writer.flush()
    finally:
        recorder.close()
    if progress:
        progress(len(prompts), len(prompts))
