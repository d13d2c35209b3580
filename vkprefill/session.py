"""A conversation: the cache is kept between turns, so that a turn prefills only what is new.

Recurrent state cannot be cut back, and a chat template seldom repeats what it rendered before to the last token (the generation prompt
and the thinking part go). So a snapshot is taken where the last message of the history ends, and a turn goes on from the longest cached
beginning of its prompt that a state exists for: the cache as it stands, or a snapshot.
"""
from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vkprefill.cache import Snapshot
from vkprefill.errors import OutOfMemoryError, RequestError
from vkprefill.generate import GenerationPart, GenerationResult, Timings, collect, ends_in_thinking, stream_tokens
from vkprefill.model import Model, PrefillProgress
from vkprefill.sampling import SamplingConfig

MAX_SNAPSHOTS = 3  # the last turns: history is edited near its end


@dataclass
class _Mark:
    token_ids: list[int]
    snapshot: Snapshot


class Session:
    """Several turns with one model. Close it to give its memory back."""

    def __init__(self, model: Model, max_context: int | None = None) -> None:
        self.model = model
        self.cache = model.new_cache(max_context)
        self._marks: list[_Mark] = []

    def stream(self, messages: Sequence[Mapping[str, object]], *, max_tokens: int | None = None, sampling: SamplingConfig | None = None,
               tools: Sequence[Mapping[str, object]] | None = None, template_kwargs: Mapping[str, object] | None = None,
               progress: PrefillProgress | None = None) -> Iterator[GenerationPart]:
        """The answer to the conversation so far, piece by piece. messages: all of them, from the first.

        timings.cache_n says how many prompt tokens were not run again.
        """
        model, template = self.model, self.model.chat_template
        if template is None:
            raise RequestError(f"chat: {model.path.name} has no chat template")
        options = dict(template_kwargs or {})
        ids = template.encode(messages, tools=tools, **options)
        history = template.encode(messages, tools=tools, add_generation_prompt=False, **options)
        sampling = (sampling or SamplingConfig()).resolve(model.metadata, ends_in_thinking(model, ids))
        if len(ids) >= self.cache.max_context:
            raise RequestError(f"context: the conversation has {len(ids)} tokens, the context {self.cache.max_context}")
        reused = self._go_back(ids)
        timings = Timings(cache_n=reused)
        if reused < len(history) < len(ids) and ids[: len(history)] == history:
            start = time.perf_counter()
            model.extend(history[reused:], self.cache, progress=progress)
            self._mark()
            timings.prompt_n, timings.prompt_ms = len(history) - reused, (time.perf_counter() - start) * 1e3
        yield from stream_tokens(model, ids[len(self.cache) :], self.cache, sampling, max_tokens=max_tokens, timings=timings,
                                 progress=progress)

    def generate(self, messages: Sequence[Mapping[str, object]], **options: object) -> GenerationResult:
        """The whole answer; options as for stream."""
        return collect(self.stream(messages, **options))

    def _go_back(self, ids: Sequence[int]) -> int:
        """Bring the cache to the longest beginning of ids it has a state for; at least one token is left to run."""
        usable = [m for m in self._marks if not m.snapshot.stale and len(m.token_ids) < len(ids) and ids[: len(m.token_ids)] == m.token_ids]
        best = max(usable, key=lambda m: len(m.token_ids), default=None)
        cached = self.cache.token_ids
        if not self.cache.broken and len(cached) < len(ids) and ids[: len(cached)] == cached:
            if best is None or len(cached) >= len(best.token_ids):
                return len(cached)
        if best is None:
            self.cache.reset()
            self._marks.clear()
            return 0
        self.cache.restore(best.snapshot)
        return len(best.token_ids)

    def _mark(self) -> None:
        """Remember this point; without memory for it the next turn starts further back, which is slower but right."""
        self._marks = [m for m in self._marks if not m.snapshot.stale][-(MAX_SNAPSHOTS - 1) :]
        try:
            self._marks.append(_Mark(list(self.cache.token_ids), self.cache.snapshot()))
        except OutOfMemoryError:
            pass

    def close(self) -> None:
        for mark in self._marks:
            mark.snapshot.free()
        self._marks.clear()
        self.cache.close()
