"""From prompt to answer: stream_generate yields pieces of text, generate gives the whole result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from vkprefill.drafting.drafters import check_drafts
from vkprefill.drafting.settings import SpecDecodeConfig
from vkprefill.engine.model import Model
from vkprefill.engine.prompt_cache import PromptCache
from vkprefill.engine.runner import PrefillProgress
from vkprefill.errors import RequestError
from vkprefill.generation.checked import OFF, WAIT, CheckedAnswer, nothing_to_check, with_seed
from vkprefill.generation.dense_side import DenseSide
from vkprefill.generation.options import AnswerOptions, Hooks, grammar_of, with_grammar
from vkprefill.generation.parts import GenerationPart, GenerationResult, collect
from vkprefill.generation.prompt import Prompt, encode_prompt
from vkprefill.generation.sampling import SamplingConfig
from vkprefill.generation.steps import Timings
from vkprefill.generation.tokens import plan_without_draft, stream_tokens
from vkprefill.specprefill.pipeline import AUTO, SpecPrefill
from vkprefill.specprefill.plan import SparseRequest
from vkprefill.specprefill.settings import SpecPrefillConfig
from vkprefill.work import without_pauses


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
    stop: Sequence[str] = (),
    schema: Mapping[str, object] | str | None = None,
    grammar: str | None = None,
    whole: bool = False,
    raw: bool = False,
    system_prompt: str | None = None,
    template_kwargs: Mapping[str, object] | None = None,
    progress: PrefillProgress | None = None,
) -> Iterator[GenerationPart]:
    """Pieces of the answer as they come.

    draft: a model for speculative prefill (or a SpecPrefill of this model, which remembers between calls); spec: its
    settings; kept_ranges: an earlier answer's, in place of scoring; max_tokens: None for as many as the context holds;
    sampling: settings left out come from the file or Qwen3.5's card; decode: how tokens are drafted, which changes
    speed and no token (None: SpecDecodeConfig()); stop: texts that the answer ends before; schema,
    grammar: see `grammar_of`; whole: nobody reads it
    before its end, so that its check (see SpecPrefillConfig) is waited for. Raises RequestError for a prompt that is
    empty or longer than the context.
    """
    hooks = Hooks(progress)
    encoded = encode_prompt(model, prompt, raw=raw, system_prompt=system_prompt, template_kwargs=template_kwargs)
    ids = encoded.token_ids
    protected = encoded.protected if draft is not None or kept_ranges is not None else None
    form = grammar_of(schema, grammar)
    asked = SparseRequest(True, spec, kept_ranges, with_grammar(encoded.facts, form), protected)
    options = AnswerOptions(
        max_tokens,
        SamplingConfig() if sampling is None else sampling,
        asked,
        decode=SpecDecodeConfig() if decode is None else decode,
        stop=tuple(stop) if isinstance(stop, list) else stop,
        whole=whole,
        grammar=form,
    )
    options = replace(options, sampling=options.sampling.resolve(model.metadata, encoded.thinking))
    check_drafts(model, options.decode)
    speculative = pair_for(model, draft, spec)
    config = spec or (speculative.config if speculative else None)
    cache, beside, check = model.new_cache(), PromptCache(model.new_cache()), None

    def before_scoring(kept: int) -> None:
        if config is not None and config.check == WAIT:
            DenseSide(model, beside, ids, options, hooks).require_room(cache, kept)

    try:
        if speculative is None:
            plan = plan_without_draft(model, asked, ids)
        else:
            plan = speculative.plan(ids, asked, cache=cache, progress=progress, before_scoring=before_scoring)
        timings = Timings()
        if plan.sparse and config is not None and config.check != OFF:
            options = with_seed(options)
            dense = DenseSide(model, beside, ids, options, hooks)
            check = CheckedAnswer.of(dense, cache, plan, config, options, hooks, cache.close)
        between = check.between if check else None
        parts = stream_tokens(model, ids, cache, plan, options, replace(hooks, between=between), timings)
        if check is not None:
            parts = check.parts(parts, timings)
        elif not plan.sparse:
            parts = nothing_to_check(plan.report, config, parts)
        yield from without_pauses(parts)
    finally:
        if check is not None:
            check.close()
        beside.close()
        cache.close()
        if speculative is not None and speculative is not draft:
            speculative.close(keep_programs=True)  # the next call with this draft records nothing


def pair_for(model: Model, draft: object, spec: SpecPrefillConfig | None) -> SpecPrefill | None:
    """The pair that was given, or one of a draft; without a draft, of the model alone where it is to score by itself.
    RequestError for what is no draft.
    """
    if isinstance(draft, Model) or draft is None and isinstance(spec, SpecPrefillConfig) and spec.scorer != AUTO:
        return SpecPrefill(model, draft, spec)
    if not isinstance(draft, SpecPrefill | None):
        raise RequestError(f"draft: found {type(draft).__name__}, wanted a loaded model or a SpecPrefill")
    return draft


def generate(model: Model, prompt: Prompt, **options: object) -> GenerationResult:
    """The whole answer; options as for stream_generate."""
    return collect(stream_generate(model, prompt, whole=True, **options))
