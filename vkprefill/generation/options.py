"""The options of an answer, in one object that a call, a turn of a session and a job of the server pass on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from vkprefill.display import printable
from vkprefill.drafting.drafters import Drafting
from vkprefill.drafting.settings import SpecDecodeConfig, check_config
from vkprefill.engine.model import Model
from vkprefill.engine.runner import PrefillProgress
from vkprefill.errors import RequestError
from vkprefill.generation.sampling import Sampler, SamplingConfig
from vkprefill.generation.slices import Clock
from vkprefill.specprefill.plan import SparseRequest
from vkprefill.text.answer_text import ends_in_thinking


@dataclass(frozen=True)
class AnswerOptions:
    """Plain data, which goes through pipes. Raises RequestError for a bad max_tokens.

    max_tokens: None for as many as the context holds; sampling: settings left out come from the file or Qwen3.5's card;
    sparse: what is asked of speculative prefill; mark_at: rising lengths of the beginnings of the prompt that later
    prompts will share, the last being that of the history; cache_prompt: False to take nothing from earlier prompts;
    decode: how tokens are drafted; stop: texts that end the answer, which ends before them; whole: nobody reads the
    answer before its end.
    """

    max_tokens: int | None = None
    sampling: SamplingConfig = SamplingConfig()
    sparse: SparseRequest = SparseRequest()
    mark_at: tuple[int, ...] = ()
    cache_prompt: bool = True
    decode: SpecDecodeConfig = SpecDecodeConfig()
    stop: tuple[str, ...] = ()
    whole: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.sampling, SamplingConfig):
            raise RequestError(f"sampling: found {type(self.sampling).__name__}, wanted SamplingConfig")
        check_config(self.decode)
        limit = self.max_tokens
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise RequestError(f"max_tokens: found {limit!r}, wanted a whole number of at least 1")
        if isinstance(self.stop, str) or not all(isinstance(text, str) and text for text in self.stop):
            raise RequestError(f"stop: found {printable(self.stop)}, wanted texts that are not empty")

    def resolve(self, model: Model, token_ids: Sequence[int]) -> AnswerOptions:
        """The same with all sampling settings filled in, as the model and the prompt's last tokens ask for them."""
        return replace(
            self, sampling=self.sampling.resolve(model.metadata, ends_in_thinking(model.tokenizer, token_ids))
        )


@dataclass(frozen=True)
class Hooks:
    """Functions of the caller that are called meanwhile, and when the call began.

    progress: of the target's prefill; scoring: of the draft's; checking: of the dense prefill that a sparse answer is
    checked against; make_sampler: from resolved settings; started: the time, by time.perf_counter, that ttft_ms counts
    from; between: called between rounds of decode, True ends the answer; drafting: what drafts instead of what the
    options say; clock: that slices of the check are measured by.
    """

    progress: PrefillProgress | None = None
    scoring: PrefillProgress | None = None
    checking: PrefillProgress | None = None
    make_sampler: Callable[[SamplingConfig], Sampler] = Sampler
    started: float = field(default_factory=time.perf_counter)
    between: Callable[[], bool] | None = None
    drafting: Callable[[Drafting], Drafting] | None = None
    clock: Clock = time.perf_counter
