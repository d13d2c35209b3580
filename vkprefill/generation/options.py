"""The options of an answer, in one object that a call, a turn of a session and a job of the server pass on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral

from vkprefill.checks import MOST_INTEGER, check_number
from vkprefill.display import printable
from vkprefill.drafting.drafters import Drafting
from vkprefill.drafting.settings import SpecDecodeConfig, check_config
from vkprefill.engine.model import Model
from vkprefill.engine.runner import PrefillProgress
from vkprefill.errors import RequestError
from vkprefill.generation.sampling import Sampler, SamplingConfig
from vkprefill.generation.slices import Clock
from vkprefill.grammar.grammars import SCHEMA, Grammar, of_gbnf, of_schema
from vkprefill.specprefill.guards import RequestFacts
from vkprefill.specprefill.plan import SparseRequest
from vkprefill.text.answer_text import ends_in_thinking
from vkprefill.work import OneAtATime


@dataclass(frozen=True)
class AnswerOptions:
    """Plain data, which goes through pipes. Raises RequestError for a bad max_tokens.

    max_tokens: None for as many as the context holds, 0 for the prompt alone; sampling: settings left out come from the
    file or Qwen3.5's card;
    sparse: what is asked of speculative prefill; mark_at: rising lengths of the beginnings of the prompt that later
    prompts will share, the last being that of the history; cache_prompt: False to take nothing from earlier prompts;
    decode: how tokens are drafted; stop: texts that end the answer, which ends before them; whole: nobody reads the
    answer before its end; grammar: what the answer has to be, after its reasoning;
    stop_token_ids: tokens that end the answer as the model's own do; min_tokens: so many come before any of those;
    ignore_eos: none of the model's is drawn; thinking_tokens: of the reasoning at most, after which it ends.
    """

    max_tokens: int | None = None
    sampling: SamplingConfig = SamplingConfig()
    sparse: SparseRequest = SparseRequest()
    mark_at: tuple[int, ...] = ()
    cache_prompt: bool = True
    decode: SpecDecodeConfig = SpecDecodeConfig()
    stop: tuple[str, ...] = ()
    whole: bool = False
    grammar: Grammar | None = None
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    thinking_tokens: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.sampling, SamplingConfig):
            raise RequestError(f"sampling: found {type(self.sampling).__name__}, wanted SamplingConfig")
        check_config(self.decode)
        limit = self.max_tokens
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise RequestError(f"max_tokens: found {limit!r}, wanted a whole number of at least 0")
        if isinstance(self.stop, str) or not all(isinstance(text, str) and text for text in self.stop):
            raise RequestError(f"stop: found {printable(self.stop)}, wanted texts that are not empty")
        check_number("min_tokens", self.min_tokens, Integral, 0, MOST_INTEGER)
        if self.thinking_tokens is not None:
            check_number("thinking_tokens", self.thinking_tokens, Integral, 0, MOST_INTEGER)
        if self.grammar is not None and (self.ignore_eos or self.min_tokens):
            name = "ignore_eos" if self.ignore_eos else "min_tokens"
            raise RequestError(f"{name}: found {getattr(self, name)!r} beside a form that the answer has to end with")
        if not isinstance(self.grammar, Grammar | None):
            raise RequestError(f"grammar: found {type(self.grammar).__name__}, wanted a Grammar")

    def resolve(self, model: Model, token_ids: Sequence[int]) -> AnswerOptions:
        """The same with all sampling settings filled in, as the model and the prompt's last tokens ask for them."""
        return replace(
            self, sampling=self.sampling.resolve(model.metadata, ends_in_thinking(model.tokenizer, token_ids))
        )


def grammar_of(
    schema: Mapping[str, object] | str | None, grammar: str | None, named: Mapping[str, str] | None = None
) -> Grammar | None:
    """What an answer has to be, after its reasoning: JSON of a schema (an object, or its text), or text of a grammar in
    GBNF. named: what errors call each of the two. RequestError for both, and for one that cannot be followed.
    """
    named = named or {"schema": "schema", "grammar": "grammar"}
    if schema is not None and grammar is not None:
        raise RequestError("grammar: found one beside a schema, wanted one of them")
    if schema is not None:
        return of_schema(schema, printable(named["schema"]))
    return None if grammar is None else of_gbnf(grammar, printable(named["grammar"]))


def with_grammar(facts: RequestFacts, grammar: Grammar | None) -> RequestFacts:
    """What the tool guard is told: a grammar other than a schema's may be that of tools."""
    return facts if grammar is None or grammar.kind == SCHEMA else replace(facts, grammar=grammar)


@dataclass(frozen=True)
class Hooks:
    """Functions of the caller that are called meanwhile, and when the call began.

    progress: of the target's prefill; scoring: of the draft's; checking: of the dense prefill that a sparse answer is
    checked against; make_sampler: from resolved settings; started: the time, by time.perf_counter, that ttft_ms counts
    from; between: called between rounds of decode, True ends the answer; drafting: what drafts instead of what the
    options say; clock: that all else is measured by, which stands still while others have their turns; scorer: what
    chooses tokens of prompts, which several sessions share.
    """

    progress: PrefillProgress | None = None
    scoring: PrefillProgress | None = None
    checking: PrefillProgress | None = None
    make_sampler: Callable[[SamplingConfig], Sampler] = Sampler
    started: float = field(default_factory=time.perf_counter)
    between: Callable[[], bool] | None = None
    drafting: Callable[[Drafting], Drafting] | None = None
    clock: Clock = time.perf_counter
    scorer: OneAtATime = field(default_factory=OneAtATime)

    def since_start_ms(self) -> float:
        return (time.perf_counter() - self.started) * 1e3
