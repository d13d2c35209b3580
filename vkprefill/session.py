"""A conversation: the cache is kept between turns, so that a turn prefills only what is new.

A chat template seldom repeats what it rendered before to the last token (the generation prompt and the thinking part go). So the place where
the last message of the history ends is marked, and a turn goes on from the longest beginning of its prompt that a state exists for.
"""
from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from vkprefill.cache import Cache
from vkprefill.errors import RequestError
from vkprefill.generate import GenerationPart, GenerationResult, Timings, collect, ends_in_thinking, stream_tokens
from vkprefill.model import Model, PrefillProgress
from vkprefill.prompt_cache import PromptCache
from vkprefill.sampling import SamplingConfig


class Session:
    """Several turns with one model. Close it to give its memory back."""

    def __init__(self, model: Model, max_context: int | None = None) -> None:
        self.model = model
        self._prompts = PromptCache(model.new_cache(max_context))

    @property
    def cache(self) -> Cache:
        return self._prompts.cache

    def stream(self, messages: Sequence[Mapping[str, object]], *, max_tokens: int | None = None, sampling: SamplingConfig | None = None,
               tools: Sequence[Mapping[str, object]] | None = None, template_kwargs: Mapping[str, object] | None = None,
               progress: PrefillProgress | None = None) -> Iterator[GenerationPart]:
        """The answer to the conversation so far, piece by piece. messages: all of them, from the first.

        timings.cache_n says how many prompt tokens were not run again.
        """
        model, template, prompts = self.model, self.model.chat_template, self._prompts
        if template is None:
            raise RequestError(f"chat: {model.path.name} has no chat template")
        options = dict(template_kwargs or {})
        ids = template.encode(messages, tools=tools, **options)
        history = template.encode(messages, tools=tools, add_generation_prompt=False, **options)
        sampling = (sampling or SamplingConfig()).resolve(model.metadata, ends_in_thinking(model, ids))
        if len(ids) >= self.cache.max_context:
            raise RequestError(f"context: the conversation has {len(ids)} tokens, the context {self.cache.max_context}")
        reused = prompts.go_back(ids, exact_only=True)
        timings = Timings(cache_n=reused)
        if reused < len(history) < len(ids) and ids[: len(history)] == history:
            start = time.perf_counter()
            model.extend(history[reused:], self.cache, progress=progress)
            prompts.note(history[reused:])
            prompts.mark()
            timings.prompt_n, timings.prompt_ms = len(history) - reused, (time.perf_counter() - start) * 1e3
        try:
            yield from stream_tokens(model, ids[len(self.cache) :], self.cache, sampling, max_tokens=max_tokens, timings=timings,
                                     progress=progress)
        finally:
            prompts.note(self.cache.token_ids[len(prompts.prompt) :])

    def generate(self, messages: Sequence[Mapping[str, object]], **options: object) -> GenerationResult:
        """The whole answer; options as for stream."""
        return collect(self.stream(messages, **options))

    def close(self) -> None:
        self._prompts.close()
