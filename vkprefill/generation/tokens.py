"""From a prompt's tokens to the parts of its answer, on a cache of the caller's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vkprefill.drafting.drafters import drafting_for
from vkprefill.engine.cache import Cache
from vkprefill.engine.model import Model
from vkprefill.engine.sliced import extend_in_slices
from vkprefill.errors import ContextLengthError
from vkprefill.generation.choices import choices_for
from vkprefill.generation.options import AnswerOptions, Hooks
from vkprefill.generation.parts import GenerationPart, Parts, cut_at_stops
from vkprefill.generation.steps import Timings, generate_step
from vkprefill.specprefill import guards
from vkprefill.specprefill.plan import Plan, SparseRequest, SpecPrefillReport, finish_plan, plan_as_given
from vkprefill.specprefill.settings import SpecPrefillConfig
from vkprefill.specprefill.unused import NO_DRAFT, Use, unused
from vkprefill.work import Pause


def stream_tokens(
    model: Model,
    token_ids: Sequence[int],
    cache: Cache,
    plan: Plan,
    options: AnswerOptions,
    hooks: Hooks,
    timings: Timings,
) -> Parts:
    """The answer to a prompt of token ids, piece by piece, on the caller's cache. See stream_generate.

    plan: which tokens of the prompt are run (the others are in the cache, or left out); options: with resolved
    sampling; timings: what earlier runs of the prompt took.
    """
    parts = _stream_tokens(model, token_ids, cache, plan, options, hooks, timings)
    return cut_at_stops(parts, options.stop)


def _stream_tokens(
    model: Model,
    token_ids: Sequence[int],
    cache: Cache,
    plan: Plan,
    options: AnswerOptions,
    hooks: Hooks,
    timings: Timings,
) -> Parts:
    report = plan.report
    timings.specprefill = report.status
    num_rows = cache.length_after(len(plan.kept))
    room = cache.max_context - num_rows
    if room < 1:
        raise ContextLengthError.of_prompt(num_rows, cache.max_context)
    ends = model.tokenizer.eog_token_ids | {*options.stop_token_ids}
    run_ids, started = np.asarray(token_ids)[plan.kept], hooks.clock()
    ran = yield from extend_in_slices(
        model.runner,
        run_ids,
        cache,
        positions=plan.kept,
        leave_last=options.max_tokens != 0,
        progress=hooks.progress,
    )
    timings.prompt_n += ran
    timings.prompt_ms += (hooks.clock() - started) * 1e3
    if options.max_tokens == 0:
        report.sparse_prefill_ms, report.ttft_ms = timings.prompt_ms, hooks.since_start_ms()
        yield GenerationPart("", None, timings, report, "length")
        return
    limit = min(room + 1, options.max_tokens or room + 1)  # the last token sampled need not be run
    decoder = model.tokenizer.stream_decoder(special=False)
    sampler = hooks.make_sampler(options.sampling)
    drafting = drafting_for(model, options.decode, token_ids, num_rows)
    steps = generate_step(
        model,
        run_ids[ran:],
        cache,
        sampler,
        timings=timings,
        drafting=hooks.drafting(drafting) if hooks.drafting else drafting,
        limit=limit,
        positions=plan.kept[ran:],
        progress=lambda done, _: hooks.progress and hooks.progress(ran + done, len(run_ids)),
        between=hooks.between,
        choices=choices_for(model.tokenizer, options, token_ids),
        prompt=token_ids,
        clock=hooks.clock,
    )
    for token_id in steps:
        if isinstance(token_id, Pause):
            yield token_id
            continue
        if timings.predicted_n == 1:
            report.sparse_prefill_ms, report.ttft_ms = timings.prompt_ms, hooks.since_start_ms()
        if token_id in ends:
            yield GenerationPart(decoder.finish(), None, timings, report, "stop")
            return
        last = timings.predicted_n == limit
        text = decoder.push(token_id) + (decoder.finish() if last else "")
        reason = "length" if last else None
        yield GenerationPart(text, token_id, timings, report, reason, chances=sampler.chances)
        if last:
            return


def dense_plan(num_tokens: int, cached_n: int = 0) -> Plan:
    """All new tokens, without a draft."""
    kept = np.arange(cached_n, num_tokens)
    plan = Plan(kept, SpecPrefillReport(guards.DISABLED, NO_DRAFT, num_tokens, cached_n))
    return finish_plan(plan, kept, None)


def plan_without_draft(model: Model, asked: SparseRequest, token_ids: Sequence[int], cached_n: int = 0) -> Plan:
    """All new tokens, or those that the request names."""
    plan = dense_plan(len(token_ids), cached_n)
    if asked.config is not None:
        use = Use(None, NO_DRAFT, given_ranges=asked.kept_ranges is not None) if asked.enabled else Use(None)
        plan.report.unused = unused(asked.config, use)
    if not asked.enabled:
        return plan
    if asked.kept_ranges is None:
        if asked.config is not None:
            plan.report.reason += ", so all new tokens were run; scorer self would have the model choose"
        return plan
    return plan_as_given(plan, asked, asked.config or SpecPrefillConfig(), model.tokenizer, token_ids)
