"""A conversation, which keeps its cache between turns, so that a turn prefills only what is new.

A chat template seldom repeats what it rendered before to the last token (the generation prompt and the thinking part
go). So the place where the last message of the history ends is marked, and a turn goes on from the longest beginning of
its prompt that a state exists for. With a draft, each turn's new tokens are scored and pruned; what earlier turns left
out stays out, unless a turn asks for an exact state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from vkprefill.drafting.drafters import check_drafts
from vkprefill.drafting.settings import SpecDecodeConfig
from vkprefill.engine.cache import Cache
from vkprefill.engine.model import Model
from vkprefill.engine.prompt_cache import Mark, PromptCache
from vkprefill.engine.runner import PrefillProgress
from vkprefill.engine.sliced import extend_in_slices
from vkprefill.errors import ContextLengthError, RequestError
from vkprefill.generation.checked import OFF, WAIT, nothing_to_check, with_seed
from vkprefill.generation.generate import pair_for
from vkprefill.generation.marks import mark_places
from vkprefill.generation.options import AnswerOptions, Hooks, grammar_of, with_grammar
from vkprefill.generation.parts import GenerationPart, GenerationResult, Parts, collect
from vkprefill.generation.prompt import ChatPrompt, template_variables
from vkprefill.generation.pruned import PrunedTurn, may_go_on
from vkprefill.generation.sampling import SamplingConfig
from vkprefill.generation.session_check import SessionCheck
from vkprefill.generation.steps import Timings
from vkprefill.generation.tokens import plan_without_draft, stream_tokens
from vkprefill.specprefill.pipeline import SpecPrefill
from vkprefill.specprefill.plan import Plan, SparseRequest, note_holes
from vkprefill.specprefill.settings import AUTO, SpecPrefillConfig
from vkprefill.work import Pause, Work, without_pauses


class Session:
    """Several turns with one model, and a draft for speculative prefill if one is given.

    Close it to give its memory back. draft: a model with the same vocabulary (or a SpecPrefill of this model, which
    others may use too); spec: settings of speculative prefill; decode: of drafts (None: SpecDecodeConfig());
    max_context: of the cache (None: all the model has); prompts: a cache that the caller keeps. importance: float32
    [T], of the last prompt's tokens; None where it was not scored.
    """

    def __init__(
        self,
        model: Model,
        draft: Model | SpecPrefill | None = None,
        spec: SpecPrefillConfig | None = None,
        *,
        decode: SpecDecodeConfig | None = None,
        max_context: int | None = None,
        prompts: PromptCache | None = None,
    ) -> None:
        self.model, self._decode = model, SpecDecodeConfig() if decode is None else decode
        check_drafts(model, self._decode)
        self._owned: list[PromptCache | SpecPrefill | SessionCheck] = []
        speculative = pair_for(model, draft, spec)
        if speculative is not None and speculative is not draft:
            self._owned.append(speculative)
        if prompts is None:
            prompts = PromptCache(model.new_cache(max_context))
            self._owned.append(prompts)
        self._speculative, self.prompts = speculative, prompts
        self._own: SpecPrefill | None = None  # for turns that want the model to score itself, where no other pair is
        self._check = SessionCheck(model, prompts)
        self._owned.append(self._check)
        self.importance: np.ndarray | None = None
        self._turn: PrunedTurn | None = None  # the one that the cache follows: a newer one ends those before

    @property
    def cache(self) -> Cache:
        return self.prompts.cache

    def stream(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        max_tokens: int | None = None,
        sampling: SamplingConfig | None = None,
        tools: Sequence[Mapping[str, object]] | None = None,
        template_kwargs: Mapping[str, object] | None = None,
        specprefill: bool = True,
        spec: SpecPrefillConfig | None = None,
        kept_ranges: Sequence[Sequence[int]] | None = None,
        decode: SpecDecodeConfig | None = None,
        stop: Sequence[str] = (),
        schema: Mapping[str, object] | str | None = None,
        grammar: str | None = None,
        whole: bool = False,
        progress: PrefillProgress | None = None,
    ) -> Iterator[GenerationPart]:
        """The answer to the conversation so far, piece by piece. messages: all of them, from the first; where the last
        is the assistant's, the answer goes on with it.

        specprefill: False for a dense turn, which never goes on from a pruned state; spec, kept_ranges, decode: for
        this turn; stop, schema, grammar, whole: as for stream_generate.
        timings.cache_n says how many prompt tokens were not looked at again.
        """
        hooks = Hooks(progress)
        if isinstance(messages, Sequence) and not messages:
            raise RequestError("messages: there are none, wanted at least one")
        prompt = ChatPrompt(self.model, messages, tools, template_variables(template_kwargs))
        form = grammar_of(schema, grammar)
        asked = SparseRequest(specprefill, spec, kept_ranges, with_grammar(prompt.facts, form))
        if kept_ranges is not None or self._pair(asked) is not None:
            asked = replace(asked, protected=prompt.protected)
        options = AnswerOptions(
            max_tokens,
            SamplingConfig() if sampling is None else sampling,
            asked,
            mark_at=(prompt.history_n,),
            decode=self._decode if decode is None else decode,
            stop=tuple(stop) if isinstance(stop, list) else stop,
            whole=whole,
            grammar=form,
        )
        yield from self.stream_ids(prompt.token_ids, options, hooks)

    def stream_ids(
        self, ids: Sequence[int], options: AnswerOptions | None = None, hooks: Hooks | None = None
    ) -> Iterator[GenerationPart]:
        """As stream, for a conversation rendered by the caller. RequestError where another turn has begun meanwhile, as
        its tokens are in the cache now.
        """
        return without_pauses(self.in_slices(ids, options, hooks))

    def in_slices(self, ids: Sequence[int], options: AnswerOptions | None = None, hooks: Hooks | None = None) -> Parts:
        """As stream_ids, with a Pause after each bounded run of the engine: other sessions' answers may run there."""
        options, hooks = options or AnswerOptions(), hooks or Hooks()
        check_drafts(self.model, options.decode)
        asked = self._resolved(options.sparse)
        ids = list(ids)
        options = replace(options.resolve(self.model, ids), sparse=asked)
        if len(ids) >= self.cache.max_context and (self._pair(asked) is None or not asked.enabled):
            raise ContextLengthError.of_prompt(len(ids), self.cache.max_context)
        turn = self._turn = PrunedTurn(asked, ids, max(options.mark_at, default=len(ids)))
        try:
            yield from self._in_slices(turn, options, hooks)
        finally:
            hooks.scorer.give_back(turn)

    def _in_slices(self, turn: PrunedTurn, options: AnswerOptions, hooks: Hooks) -> Parts:
        model, ids, asked = self.model, turn.token_ids, turn.asked
        reused = self.prompts.go_back(self.find(ids, options))
        places = mark_places(ids, options.mark_at, reused, model.tokenizer)
        plan = yield from self._plan(turn, options, reused, places, hooks)
        if not self.cache.ahead:
            hooks.scorer.give_back(turn)
        note_holes(plan.report, self.cache.run_positions)
        self.importance = plan.importance
        lacking, config = plan.sparse or self.prompts.lacks is not None, asked.config
        check = None
        if lacking and config is not None and config.check != OFF:
            options = with_seed(options)
            check = self._check.begin(ids, plan, config, options, hooks)
        else:
            self._check.drop()
        timings, num_kept = Timings(cache_n=reused), len(plan.kept)

        def ran(done: int, _: int) -> None:
            if hooks.progress:
                hooks.progress(before + done, num_kept)

        before, rows = 0, None  # tokens run by earlier calls of the model, rows of the cache after the prompt
        try:
            for place in places:
                within = replace(hooks, progress=ran)
                plan = yield from self._prefill_and_mark(ids, place, plan, turn, timings, within)
                before = timings.prompt_n
                yield Pause.SLICE
            rows, run_n = self.cache.length_after(len(plan.kept)), len(plan.kept)
            within = replace(hooks, progress=ran, between=check.between if check else None)
            parts = stream_tokens(model, ids, self.cache, plan, options, within, timings)
            if check is not None:
                parts = check.parts(parts, timings)
            elif not lacking:
                parts = nothing_to_check(plan.report, config, parts)
            yield from self._noted(parts, turn, hooks)
        finally:
            if check is not None and self._check.is_switched(check):
                rows, run_n = len(ids), len(ids) - len(self.prompt)
            ran_prompt = rows is not None and len(self.cache) >= rows and not (self.cache.broken or self.cache.ahead)
            if self._turn is turn and ran_prompt:  # not so after an interrupt in prefill
                self._note(ids[len(self.prompt) :], run_n, turn)
                self._note(self.cache.token_ids[rows:], len(self.cache) - rows, turn)
                self.prompts.mark()
                self.prompts.settled = turn.history_n
            if check is not None:
                self._check.end(check, turn, config.check_idle and self._turn is turn)

    def _noted(self, parts: Parts, turn: PrunedTurn, hooks: Hooks) -> Parts:
        """The same, the turn's answer noted. RequestError where another turn has begun meanwhile."""
        for part in parts:
            if not isinstance(part, Pause):
                hooks.scorer.give_back(turn)  # all of the prompt is run
                turn.answer += [] if part.token_id is None else [part.token_id]
            yield part
            if self._turn is not turn:
                raise RequestError("session: another turn has begun; finish an answer before the next is asked for")

    def _pair(self, asked: SparseRequest) -> SpecPrefill | None:
        """Who scores for this turn: the session's pair, or the model alone for a turn that wants it to. None: nobody. A
        turn's settings end with it.
        """
        if self._speculative is not None or asked.config is None or asked.config.scorer == AUTO:
            return self._speculative
        if self._own is None:
            self._own = SpecPrefill(self.model, None)
            self._owned.append(self._own)
        return self._own

    def _resolved(self, asked: SparseRequest) -> SparseRequest:
        if asked.config is not None or self._speculative is None:
            return asked
        return replace(asked, config=self._speculative.config)

    def _plan(
        self, turn: PrunedTurn, options: AnswerOptions, reused: int, places: list[int], hooks: Hooks
    ) -> Work[Plan]:
        ids = turn.token_ids
        pair = self._pair(options.sparse)
        if pair is None:
            return plan_without_draft(self.model, options.sparse, ids, reused)
        config = options.sparse.config

        def before_scoring(kept: int) -> None:
            if config is not None and config.check == WAIT:
                self._check.require_room(ids, kept, options, hooks)

        return (
            yield from pair.plan_in_slices(
                ids,
                options.sparse,
                cached_n=reused,
                cache=self.cache,
                mark_at=places,
                fresh=not options.cache_prompt,
                progress=hooks.scoring or hooks.progress,
                before_scoring=before_scoring,
                scorer_free=lambda: hooks.scorer.take(turn),
            )
        )

    def _prefill_and_mark(
        self, ids: list[int], end: int, plan: Plan, turn: PrunedTurn, timings: Timings, hooks: Hooks
    ) -> Work[Plan]:
        """Run what comes before `end` and mark the state there; returns the plan of the rest."""
        kept, start = plan.kept[plan.kept < end], hooks.clock()
        if len(kept):
            tokens, run = np.asarray(ids)[kept], self.model.runner
            yield from extend_in_slices(run, tokens, self.cache, positions=kept, progress=hooks.progress)
        self._note(ids[len(self.prompt) : end], len(kept), turn)
        self.prompts.mark()
        timings.prompt_n += len(kept)
        timings.prompt_ms += (hooks.clock() - start) * 1e3
        return replace(plan, kept=plan.kept[plan.kept >= end])

    def _note(self, tokens: list[int], num_run: int, turn: PrunedTurn) -> None:
        """The cache stands for these further tokens, of which so many were run."""
        pruned = num_run < len(tokens) or self.prompts.lacks is not None
        self.prompts.note(tokens, turn if pruned else None)

    def generate(self, messages: Sequence[Mapping[str, object]], **options: object) -> GenerationResult:
        """The whole answer; options as for stream."""
        return collect(self.stream(messages, whole=True, **options))

    @property
    def prompt(self) -> Sequence[int]:
        """The tokens that the cache stands for, those left out by sparse prefills included."""
        return self.prompts.prompt

    def find(self, ids: Sequence[int], options: AnswerOptions) -> Mark | None:
        """The mark that a prompt would go on from; None where it would start at its beginning."""
        if not options.cache_prompt:
            return None
        asked = self._resolved(options.sparse)
        pair = self._pair(asked)
        own = pair and asked.enabled and pair.split_of(asked.config)

        def may_use(mark: Mark) -> bool:
            split = mark.snapshot.point.split
            return (not own or split in (None, own)) and may_go_on(asked, ids, self.model.tokenizer, mark)

        exact = pair is None and asked.kept_ranges is None
        return self.prompts.find(ids) if exact else self.prompts.find(ids, may_use)

    def idle(self) -> bool:
        """To be called while nobody asks for anything: one step of a check that an answer ended before, a bounded run
        of the model. False where there is nothing more to do.
        """
        return self._check.step()

    def give_up_check(self) -> None:
        """Forget a check that an answer ended before, and give its memory back."""
        self._check.give_up_pending()

    @property
    def late_checks(self) -> Counter[str]:
        """How often each status came out of checks that answers ended before."""
        return self._check.late

    def reset(self) -> None:
        """Forget the conversation; its memory goes back to the models' pools."""
        self._check.drop()
        self.prompts.reset()
        if self._speculative in self._owned:
            self._speculative.reset()

    def close(self) -> None:
        for part in self._owned:
            part.close()
