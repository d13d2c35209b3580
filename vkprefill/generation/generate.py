"""From prompt to answer: stream_generate yields pieces of text, generate gives the whole result."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from vkprefill.drafting.drafters import check_drafts, drafting_for
from vkprefill.drafting.settings import SpecDecodeConfig
from vkprefill.engine.cache import Cache
from vkprefill.engine.model import Model
from vkprefill.engine.runner import PrefillProgress
from vkprefill.errors import ContextLengthError, RequestError
from vkprefill.generation.options import AnswerOptions, Hooks
from vkprefill.generation.prompt import Prompt, encode_prompt
from vkprefill.generation.sampling import SamplingConfig
from vkprefill.generation.steps import Timings, generate_step
from vkprefill.specprefill import guards
from vkprefill.specprefill.pipeline import SpecPrefill
from vkprefill.specprefill.plan import Plan, SparseRequest, SpecPrefillReport, finish_plan, plan_as_given
from vkprefill.specprefill.settings import SpecPrefillConfig


@dataclass
class GenerationPart:
    """A piece of the answer. Its text may be empty while a character is incomplete; the last part has a finish_reason.

    finish_reason: "stop" (the model ended its answer) or "length" (max_tokens or the context is used up).
    """

    text: str
    token_id: int | None
    timings: Timings
    specprefill: SpecPrefillReport
    finish_reason: str | None = None


@dataclass
class GenerationResult:
    """A whole answer. token_ids: those of the text, without the end-of-generation token."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = "length"
    timings: Timings = field(default_factory=Timings)
    specprefill: SpecPrefillReport | None = None

    def add(self, part: GenerationPart) -> None:
        self.text += part.text
        if part.token_id is not None:
            self.token_ids.append(part.token_id)
        self.finish_reason = part.finish_reason or self.finish_reason
        self.timings, self.specprefill = part.timings, part.specprefill

    def as_dict(self) -> dict[str, object]:
        """The object that `generate --json` prints."""
        return {
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "timings": self.timings.as_dict(),
            "specprefill": self.specprefill.as_dict() if self.specprefill else None,
        }


def stream_tokens(
    model: Model,
    token_ids: Sequence[int],
    cache: Cache,
    plan: Plan,
    options: AnswerOptions,
    hooks: Hooks,
    timings: Timings,
) -> Iterator[GenerationPart]:
    """The answer to a prompt of token ids, piece by piece, on the caller's cache. See stream_generate.

    plan: which tokens of the prompt are run (the others are in the cache, or left out); options: with resolved
    sampling; timings: what earlier runs of the prompt took.
    """
    report = plan.report
    timings.specprefill = report.status
    room = cache.max_context - len(cache) - len(plan.kept)
    if room < 1:
        raise ContextLengthError.of_prompt(len(cache) + len(plan.kept), cache.max_context)
    limit = min(room + 1, options.max_tokens or room + 1)  # the last token sampled need not be run
    decoder = model.tokenizer.stream_decoder(special=False)
    run_ids = np.asarray(token_ids)[plan.kept]
    steps = generate_step(
        model,
        run_ids,
        cache,
        hooks.make_sampler(options.sampling),
        timings=timings,
        drafting=drafting_for(model, options.decode, token_ids, len(cache) + len(run_ids)),
        limit=limit,
        positions=plan.kept,
        progress=hooks.progress,
    )
    for token_id in steps:
        if timings.predicted_n == 1:
            report.sparse_prefill_ms, report.ttft_ms = timings.prompt_ms, (time.perf_counter() - hooks.started) * 1e3
        if token_id in model.tokenizer.eog_token_ids:
            yield GenerationPart(decoder.finish(), None, timings, report, "stop")
            return
        last = timings.predicted_n == limit
        text = decoder.push(token_id) + (decoder.finish() if last else "")
        yield GenerationPart(text, token_id, timings, report, "length" if last else None)
        if last:
            return


def dense_plan(num_tokens: int, cached_n: int = 0) -> Plan:
    """All new tokens, without a draft."""
    kept = np.arange(cached_n, num_tokens)
    plan = Plan(kept, SpecPrefillReport(guards.DISABLED, "no draft model in use", num_tokens, cached_n))
    return finish_plan(plan, kept, None)


def plan_without_draft(model: Model, asked: SparseRequest, token_ids: Sequence[int], cached_n: int = 0) -> Plan:
    """All new tokens, or those that the request names."""
    plan = dense_plan(len(token_ids), cached_n)
    if asked.kept_ranges is None or not asked.enabled:
        return plan
    return plan_as_given(plan, asked, asked.config or SpecPrefillConfig(), model.tokenizer, token_ids)


def stream_generate(
    model: Model,
    prompt: Prompt,
    *,
    draft: Model | SpecPrefill | None = None,
    spec: SpecPrefillConfig | None = None,
    kept_ranges: Sequence[Sequence[int]] | None = None,
    max_tokens: int | None = 64,
    sampling: SamplingConfig | None = None,
    decode: SpecDecodeConfig | None = None,
    raw: bool = False,
    system_prompt: str | None = None,
    template_kwargs: Mapping[str, object] | None = None,
    progress: PrefillProgress | None = None,
) -> Iterator[GenerationPart]:
    """Pieces of the answer as they come.

    draft: a model for speculative prefill (or a SpecPrefill of this model, which remembers between calls); spec: its
    settings; kept_ranges: an earlier answer's, in place of scoring; max_tokens: None for as many as the context holds;
    sampling: settings left out come from the file or Qwen3.5's card; decode: how tokens are drafted, which changes
    speed and no token (None: SpecDecodeConfig()). Raises RequestError for a prompt that is empty or longer than the
    context.
    """
    hooks = Hooks(progress)
    encoded = encode_prompt(model, prompt, raw=raw, system_prompt=system_prompt, template_kwargs=template_kwargs)
    ids = encoded.token_ids
    protected = encoded.protected if draft is not None or kept_ranges is not None else None
    asked = SparseRequest(True, spec, kept_ranges, encoded.facts, protected)
    options = AnswerOptions(
        max_tokens,
        SamplingConfig() if sampling is None else sampling,
        asked,
        decode=SpecDecodeConfig() if decode is None else decode,
    )
    options = replace(options, sampling=options.sampling.resolve(model.metadata, encoded.thinking))
    check_drafts(model, options.decode)
    speculative = SpecPrefill(model, draft, spec) if isinstance(draft, Model) else checked_draft(draft)
    cache = model.new_cache()
    try:
        if speculative is None:
            plan = plan_without_draft(model, asked, ids)
        else:
            plan = speculative.plan(ids, asked, progress=progress)
        yield from stream_tokens(model, ids, cache, plan, options, hooks, Timings())
    finally:
        cache.close()
        if speculative is not draft:
            speculative.close(keep_programs=True)  # the next call with this draft records nothing


def checked_draft(draft: object) -> SpecPrefill | None:
    """RequestError for what is neither a pair nor None."""
    if not isinstance(draft, SpecPrefill | None):
        raise RequestError(f"draft: found {type(draft).__name__}, wanted a loaded model or a SpecPrefill")
    return draft


def generate(model: Model, prompt: Prompt, **options: object) -> GenerationResult:
    """The whole answer; options as for stream_generate."""
    return collect(stream_generate(model, prompt, **options))


def collect(parts: Iterator[GenerationPart]) -> GenerationResult:
    """All parts as one result."""
    result = GenerationResult()
    for part in parts:
        result.add(part)
    return result
