"""Messages between the server and the process that owns the GPU: plain data, pickled through a pipe."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

from vkprefill import log_lines
from vkprefill.drafting.settings import SpecDecodeConfig
from vkprefill.engine.microscope.steering import Steer
from vkprefill.generation.options import AnswerOptions
from vkprefill.specprefill.settings import SpecPrefillConfig

DEFAULT_TURNS = 4


@dataclass(frozen=True)
class EngineOptions:
    """What the engine loads. draft: None for no draft; spec: None for no speculative prefill by default; num_slots:
    conversations it remembers at most (None: as many as memory holds); cache_ram: MiB of the host's memory for them,
    -1: no bound; mtp, mtp_window, steer: see engine.model.load; decode: drafts that the model must be able to make;
    turns: jobs that are answered in turns, at most; log_level, log_format: as for log_lines.set_up."""

    model: Path
    draft: Path | None
    spec: SpecPrefillConfig | None
    device: str | None = None
    max_context: int | None = None
    kv_type: str = "f16"
    prefill_chunk: int | None = None
    precision: str = "auto"
    num_slots: int | None = None
    cache_ram: int = 8192
    mtp: Path | str | None = "auto"
    mtp_window: int | None = None
    steer: tuple[Steer, ...] = ()
    decode: SpecDecodeConfig = SpecDecodeConfig()
    turns: int = DEFAULT_TURNS
    log_level: int = logging.WARNING
    log_format: str = log_lines.TEXT


# -- to the engine -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One prompt to answer.

    options: what is asked of the answer; num_logprobs: most probable tokens to report beside each chosen one (None: no
    log-probabilities); want_progress: report each step of the prefill; want_details: tell tokens and their importance
    with the result; want_map: tell what the prompt's last token reads in every layer, of a dense prefill of its own;
    echo: tell the log-probabilities of the prompt's tokens first, if any are to be told; queued_ms: that it waited for
    its turns to begin.
    """

    job_id: int
    token_ids: tuple[int, ...]
    options: AnswerOptions = AnswerOptions()
    num_logprobs: int | None = None
    want_progress: bool = False
    want_details: bool = False
    want_map: bool = False
    echo: bool = False
    queued_ms: float = 0.0


@dataclass(frozen=True)
class Cancel:
    """Stop this job before its next submission. It is answered by the job's Failed, or by what was on its way."""

    job_id: int


@dataclass(frozen=True)
class Stop:
    """End the process, and with it the job in hand."""


# -- from the engine ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Loading:
    """A stage of the start."""

    stage: str


@dataclass(frozen=True)
class Ready:
    """device: its name and driver; max_context: slots of the KV cache, which the conversations share; precision: of
    prefill's products, "full" or "half".
    """

    device: str
    max_context: int
    prefill_chunk: int
    precision: str


@dataclass(frozen=True)
class Unusable:
    """The engine ends: the model cannot be loaded, or the device was lost."""

    message: str
    lost: bool = False


@dataclass(frozen=True)
class Alive:
    """A sign of life, sent when there is nothing else to tell."""


@dataclass(frozen=True)
class Progress:
    """How far a job's prefill is. stage: "score" (the draft), "prefill" (the target), "layers" (the dense prefill of a
    map of layers) or "check" (the one that the answer is checked against); done, total: tokens of the stage, without
    those in the cache; turns: answers that take turns with the device, this one included; share: of the time since it
    began that this one had; wait_ms: that others had, or the queue took."""

    job_id: int
    stage: str
    done: int
    total: int
    cached: int
    ms: float
    turns: int = 1
    share: float = 1.0
    wait_ms: float = 0.0


@dataclass(frozen=True)
class Standing:
    """How a job is getting on, for those who watch the server. stage, done, total, share, wait_ms: as in Progress, the
    stage "decode" after the prompt's; predicted_n: tokens of the answer so far; place: in the order of turns, 0 is the
    next; own_ms: that it had the device; slices: how often."""

    job_id: int
    stage: str
    done: int
    total: int
    predicted_n: int
    place: int
    share: float
    own_ms: float
    wait_ms: float
    slices: int


@dataclass(frozen=True)
class Standings:
    """Of all jobs that the engine has; changes: of turns since its start."""

    jobs: tuple[Standing, ...]
    changes: int


@dataclass(frozen=True)
class Piece:
    """A piece of a job's answer. logprobs: of the tokens whose text it completes, as in OpenAI's answers; revised_from:
    characters that stay of the text so far, which the piece follows then; None: all."""

    job_id: int
    text: str
    logprobs: tuple[dict[str, object], ...] = ()
    revised_from: int | None = None


@dataclass(frozen=True)
class Done:
    """finish_reason: "stop", "length" or "check"; timings, specprefill: as in answers; memory: device bytes by kind;
    cache: what the prompt cache holds, by the names of StoreFigures; late_checks: of checks that had been pending, how
    often each status came out; layer_map: as in answers, None where none is wanted."""

    job_id: int
    finish_reason: str
    timings: dict[str, object]
    specprefill: dict[str, object]
    stop_text: str | None = None
    memory: dict[str, int] = field(default_factory=dict)
    cache: dict[str, int] = field(default_factory=dict)
    late_checks: dict[str, int] = field(default_factory=dict)
    layer_map: dict[str, object] | None = None


@dataclass(frozen=True)
class Failed:
    """status: of HTTP; CANCELLED for a job that was cancelled; code: OpenAI's, where it has one."""

    job_id: int
    status: int
    message: str
    code: str | None = None


# -- from the queue before the engine ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Queued:
    """A job waits, `ms` so far. ahead: how many are before it, the one in hand included; total: its prompt's tokens."""

    job_id: int
    ahead: int
    total: int
    ms: float


CANCELLED = 499
TOO_LONG = "context_length_exceeded"  # the code of a prompt that does not fit
JobEvent = Queued | Progress | Piece | Done | Failed
