"""Points of many prompts, recorded to a folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from vkprefill.engine.microscope.record import Wish
from vkprefill.engine.model import Model
from vkprefill.engine.outline import Outline
from vkprefill.errors import RequestError
from vkprefill.recording.prompts import Prompt
from vkprefill.recording.shards import DTYPES, ShardWriter, file_hash

LOADING = "max_context", "prefill_chunk", "kv_type", "precision"  # change bits, or which prompts are refused


@dataclass(frozen=True)
class Recorded:
    """A prompt's entry in the manifest, and its arrays by name."""

    entry: dict[str, object]
    arrays: dict[str, np.ndarray]


def recording_facts(
    model: Outline, wish: Wish, prompts_file: bytes, dtype: str, max_bytes: int, loading: Mapping[str, object]
) -> dict[str, object]:
    """What must be the same for a recording to be gone on with; the beginning of the manifest. loading: options of
    `load`.
    """
    tokens = wish.tokens if isinstance(wish.tokens, str) else [wish.tokens.start, wish.tokens.stop, wish.tokens.step]
    return {
        "model": {"file": model.path.name, "sha256": file_hash(model.path), "name": model.config.name},
        "points": {name: list(model.points[name]) for name in wish.names},
        "tokens": tokens,
        "steps": wish.steps,
        "max_tokens": wish.max_tokens,
        **{name: loading[name] for name in LOADING},
        "dtype": dtype,
        "max_shard_bytes": max_bytes,
        "prompts_sha256": hashlib.sha256(prompts_file).hexdigest(),
    }


class PromptRecorder:
    """Records prompts one after another; `close` gives its memory back."""

    def __init__(self, model: Model, wish: Wish, dtype: str) -> None:
        self._recorder, self._kind = model.recorder(wish), DTYPES[dtype][1]

    def record(self, prompt: Prompt) -> Recorded:
        """A number that float16 cannot hold becomes infinite. Raises RequestError for what this prompt cannot have."""
        cache = self._recorder.record(prompt.token_ids)
        with np.errstate(over="ignore"):
            arrays = {name: array.astype(self._kind) for name, array in cache.items()}
        arrays["tokens"] = cache.tokens.astype(np.int32)
        arrays["token_ids"] = cache.token_ids.astype(np.int32)
        return Recorded({"num_prompt": cache.num_prompt, "num_tokens": len(cache.token_ids)}, arrays)

    def close(self) -> None:
        self._recorder.close()


def recorded_here(model: Model, prompts: Iterable[Prompt], wish: Wish, dtype: str) -> Iterator[Recorded | RequestError]:
    """One prompt after another; what one cannot have ends nothing."""
    with closing(PromptRecorder(model, wish, dtype)) as recorder:
        for prompt in prompts:
            try:
                yield recorder.record(prompt)
            except RequestError as error:
                yield error


def write_recorded(
    prompts: Sequence[Prompt],
    recorded: Iterable[Recorded | RequestError],
    writer: ShardWriter,
    progress: Callable[[int, int], None],
) -> None:
    """recorded: of the prompts that the writer does not have yet, in order; what was refused has an entry that says
    why, and no arrays. progress(prompts done, of how many).
    """
    first = writer.done
    progress(first, len(prompts))
    for number, (prompt, one) in enumerate(zip(prompts[first:], recorded, strict=True), first + 1):
        refused = isinstance(one, RequestError)
        writer.add(prompt.id, {"error": str(one)} if refused else one.entry, {} if refused else one.arrays)
        progress(number, len(prompts))
    writer.flush()
