"""The draft's say on which prompt tokens matter: importance from its softmax rows, reduced on the device.

importance[t] = mean over steps (max over layers (max over heads (pool(row)[t])))   (Liu, Chen & Zhang 2025, arXiv
2502.02789, section 3)

Steps are the last prompt token and greedily decoded look-ahead tokens, or the last tail_queries prompt tokens where
look-ahead is off or only early layers are scored; then the draft stops after the last scored layer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vkprefill.engine import kernels
from vkprefill.engine.capture import RowTap, checked_layers
from vkprefill.engine.model import Model
from vkprefill.engine.prompt_cache import PromptCache
from vkprefill.engine.runner import Best, PrefillProgress
from vkprefill.engine.sizes import PAGE
from vkprefill.engine.step import StepWord
from vkprefill.errors import RequestError, VkPrefillError
from vkprefill.specprefill.selection import windows
from vkprefill.specprefill.settings import SpecPrefillConfig
from vkprefill.vulkan.program import Program


@dataclass(frozen=True)
class Importance:
    """values: float32 [T], higher = keep; num_steps: query rows averaged; cached_n: tokens the draft had from an
    earlier call.
    """

    values: np.ndarray
    num_steps: int
    cached_n: int
    score_ms: float
    lookahead_ms: float


class Scorer:
    """Scores prompts with a draft model. Keeps the draft's cache, so that a further turn runs only its new tokens."""

    def __init__(self, draft: Model) -> None:
        self.draft = draft
        self._prompts = PromptCache(draft.new_cache())
        self._programs: _ScorePrograms | None = None
        self._last_layer: int | None = None  # that the cached tokens went through; None: all

    def score(
        self,
        token_ids: Sequence[int],
        config: SpecPrefillConfig,
        *,
        mark_at: int | None = None,
        progress: PrefillProgress | None = None,
    ) -> Importance:
        """Importance of every token of a prompt. Raises RequestError when it does not fit the draft's context,
        VkPrefillError for NaN or infinity.

        mark_at: a beginning of the prompt that later prompts will share (up to the generation prompt): scoring can go
        on from there.
        """
        if config.window_size(self.draft.max_context):
            return self._score_windows(token_ids, config, progress)
        return self._score_whole(token_ids, config, mark_at, progress)

    def _score_windows(
        self, token_ids: Sequence[int], config: SpecPrefillConfig, progress: PrefillProgress | None
    ) -> Importance:
        """Overlapping windows, each with a fresh cache; every token takes its value from exactly one."""
        values = np.empty(len(token_ids), np.float32)
        steps, score_ms, lookahead_ms, start, most = 0, 0.0, 0.0, 0, 0

        def between(done: int, total: int) -> None:
            nonlocal most
            most = max(most, start + done)  # windows overlap
            if progress:
                progress(most, len(token_ids))

        for start, end, score_start, score_end in windows(len(token_ids), config.window_size(self.draft.max_context)):
            self._prompts.reset()
            part = self._score_whole(token_ids[start:end], config, None, between)
            values[score_start:score_end] = part.values[score_start - start : score_end - start]
            steps, score_ms, lookahead_ms = part.num_steps, score_ms + part.score_ms, lookahead_ms + part.lookahead_ms
        self._prompts.reset()
        return Importance(values, steps, 0, score_ms, lookahead_ms)

    def _score_whole(
        self, token_ids: Sequence[int], config: SpecPrefillConfig, mark_at: int | None, progress: PrefillProgress | None
    ) -> Importance:
        draft, run, prompts, num_tokens = self.draft, self.draft.runner, self._prompts, len(token_ids)
        layers = checked_layers(None if config.score_layers == "all" else config.score_layers, draft.config)
        lookahead, tail = lookahead_steps(config, draft), min(max(1, config.tail_queries), num_tokens)
        if num_tokens + lookahead > prompts.cache.max_context:
            raise RequestError(
                f"draft context: {num_tokens} prompt and {lookahead} look-ahead tokens, the draft holds "
                f"{prompts.cache.max_context}; use windows (window) or load it with more"
            )
        programs = self._programs_for(layers, lookahead, max(1, config.tail_queries), config.pool_size, num_tokens)
        if programs.last_layer != self._last_layer:  # the cache holds nothing of the layers after it
            prompts.reset()
            self._last_layer = programs.last_layer
        start = time.perf_counter()
        cached = prompts.go_back(token_ids[: num_tokens - tail + 1], exact_only=True)
        programs.start(num_tokens)

        def best_read() -> int:
            return int(run.candidates(1)[0][0])

        def best_token() -> int:
            return int(run.head_candidates(Best(1))[0][0])

        ends = [mark_at, num_tokens] if mark_at is not None and cached < mark_at < num_tokens else [num_tokens]
        for end in ends:
            part, first_query = token_ids[len(prompts.prompt) : end], num_tokens - tail - len(prompts.prompt)
            token = run.prefill(
                part,
                prompts.cache,
                head=best_token if lookahead and end == num_tokens else None,
                progress=progress,
                program_for=lambda first, count, query=first_query: programs.prefill(
                    range(max(query - first, 0), count)
                ),
            )
            prompts.note(part)
            prompts.mark()
        scored = time.perf_counter()
        num_steps = tail
        for _ in range(
            lookahead
        ):  # tokens the draft makes up are not noted: the next call goes back to the mark before them
            if token in draft.tokenizer.eog_token_ids:
                break
            token = run.decode(token, prompts.cache, best_read, best=Best(1), program=programs.decode)
            num_steps += 1
            if progress:
                progress(num_tokens, num_tokens)
        values = programs.total() / np.float32(num_steps)
        if not np.isfinite(values).all():
            prompts.reset()  # nothing goes on from such a state
            raise VkPrefillError(_not_finite(values, draft))
        return Importance(values, num_steps, cached, (scored - start) * 1e3, (time.perf_counter() - scored) * 1e3)

    def _programs_for(
        self, layers: tuple[int, ...], lookahead: int, tail: int, pool_size: int, num_keys: int
    ) -> _ScorePrograms:
        key = (layers, lookahead > 0, min(tail, self.draft.prefill_chunk), pool_size)
        stride = (
            num_keys + lookahead
        )  # look-ahead queries have scores for the tokens before them too, until their rows are cut
        if self._programs is None or self._programs.key != key or self._programs.stride < stride:
            if self._programs is not None:
                self._programs.free()
                self._programs = None
            self._programs = _ScorePrograms(self.draft, key, stride)
        return self._programs

    def reset(self) -> None:
        """Empty the draft's cache."""
        self._prompts.reset()

    def close(self) -> None:
        self._prompts.close()
        if self._programs is not None:
            self._programs.free()
            self._programs = None


def lookahead_steps(config: SpecPrefillConfig, draft: Model) -> int:
    """Look-ahead needs all layers: where tail queries are asked for, or early layers only, there is none."""
    early = config.score_layers != "all" and draft.config.attention_layers[-1] not in config.score_layers
    return 0 if early or config.tail_queries else config.lookahead


def _not_finite(values: np.ndarray, draft: Model) -> str:
    token = np.flatnonzero(~np.isfinite(values))[0]
    message = f"importance: token {token} has {values[token]}: the attention of the draft {draft.path.name} overflows"
    if draft.kv_type == "f16":
        return f'{message}, in its half-precision KV cache perhaps; load it with kv_type="f32"'
    return message


class _ScorePrograms:
    """The draft's programs with rows and their reduction, for prompts of up to `stride` tokens."""

    def __init__(self, draft: Model, key: tuple[tuple[int, ...], bool, int, int], num_keys: int) -> None:
        self.key, self._draft = key, draft
        self._layers, lookahead, most, self._pool_size = key
        self.stride = -(-num_keys // (4 * PAGE)) * 4 * PAGE
        device, heads = draft.device, draft.config.num_attention_heads
        device.require(4 * self.stride * (most * (heads + 1) + 1), f"scoring of {num_keys} prompt tokens")
        self._rows = device.buffer("score_rows", (most, heads, self.stride), kind="scoring")
        self._best = device.buffer("score_best", (most, self.stride), kind="scoring")
        self._total = device.buffer("importance", (self.stride,), kind="scoring")
        self._tap = RowTap(draft.runner, most, "scoring")
        self._clear = device.program("clear importance")
        self._clear.fill(self._total)
        run, chunk = draft.runner, draft.runner.sizes.rows
        self.last_layer = last = None if lookahead else self._layers[-1]
        self._plain = (
            run.forward.record_trunk("draft", chunk, last_layer=last) if last is not None else run.prefill_program
        )
        self._scored = self._sum(run.forward.record_trunk("score", chunk, self._record, last_layer=last))
        self._decode = (
            self._sum(run.forward.record_trunk("lookahead", 1, self._record, with_head=True)) if lookahead else None
        )
        self._num_tokens = 0

    def _record(self, p: Program, layer: int) -> None:
        if layer in self._layers:
            self._tap.record(p, layer, self._rows)
            kernels.importance(p, self._rows, self._best, pool_size=self._pool_size, first=layer == self._layers[0])

    def _sum(self, p: Program) -> Program:
        kernels.importance_sum(p, self._best, self._total)
        return p

    def start(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens
        self._clear.run()

    def prefill(self, queries: range) -> Program:
        """For a run of which these tokens are queries."""
        if not len(queries):
            return self._plain
        self._choose(queries)
        return self._scored

    def decode(self) -> Program:
        self._choose(range(1))
        return self._decode

    def _choose(self, queries: range) -> None:
        self._tap.choose(queries, range(len(queries)), self._num_tokens)
        self._draft.runner.set_words({StepWord.PROMPT_KEYS: self._num_tokens})

    def total(self) -> np.ndarray:
        """float32 [T]: the sum over steps; all that is read back."""
        return self._total.part("importance", 0, (self._num_tokens,)).read()

    def free(self) -> None:
        self._tap.free()
        for buffer in (self._rows, self._best, self._total):
            buffer.free()
