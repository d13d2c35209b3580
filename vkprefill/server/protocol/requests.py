"""Bodies of completion requests -> checked requests. Pure functions.

Fields that are not known here are ignored, as clients send many; what is known and cannot be done is refused, never
left out in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from vkprefill.errors import RequestError
from vkprefill.generation.generate import template_variables
from vkprefill.generation.sampling import SamplingConfig
from vkprefill.server.api_error import ApiError, bad_request
from vkprefill.server.protocol.fields import as_api_error, is_whole, optional, required, shown, whole
from vkprefill.server.protocol.messages import check_messages, check_tools
from vkprefill.specprefill.settings import SpecPrefillConfig

MAX_STOPS = 16
MAX_STOP_CHARS = 1000
MAX_LOGPROBS = 20
MAX_TOKENS = 2**31 - 1

# Fields that would change the answer and are not done here: the values that ask for nothing.
REFUSED: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "frequency_penalty": (0,),
    "repeat_penalty": (1,),
    "logit_bias": ({}, []),
    "grammar": ("",),
    "json_schema": ({},),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": ({},),
}
SAMPLING = {"temperature": float, "top_k": int, "top_p": float, "min_p": float, "presence_penalty": float, "seed": int}
KEEP_FIELDS = ("specprefill_keep_pct", "speculative_prefill_keep_pct")


@dataclass(frozen=True)
class SpecPrefillRequest:
    """enabled: False for a dense answer; settings: the effective ones (None without a draft); kept_ranges: an
    earlier answer's choice; details: tell tokens and importance too."""

    enabled: bool = True
    settings: SpecPrefillConfig | None = None
    kept_ranges: list[list[int]] | None = None
    details: bool = False


@dataclass(frozen=True)
class AnswerRequest:
    """What chat and plain completions have in common. num_logprobs: None for none; cache_prompt: False to take nothing
    from earlier prompts."""

    sampling: SamplingConfig
    max_tokens: int | None
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    num_logprobs: int | None
    return_progress: bool
    specprefill: SpecPrefillRequest
    cache_prompt: bool = True


@dataclass(frozen=True)
class ChatRequest(AnswerRequest):
    """messages and tools as the chat template takes them."""

    messages: list[dict[str, object]] = field(default_factory=list)
    tools: list[dict[str, object]] | None = None
    template_kwargs: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class CompletionRequest(AnswerRequest):
    """prompt: text, or token ids as they stand."""

    prompt: str | list[int] = ""


@dataclass(frozen=True)
class Defaults:
    """What requests that say nothing get. spec: None without a draft; max_tokens: also the most that any request
    gets."""

    sampling: SamplingConfig = SamplingConfig()
    spec: SpecPrefillConfig | None = None
    max_tokens: int | None = None
    template_kwargs: Mapping[str, object] = field(default_factory=dict)


def parse_chat(body: Mapping[str, object], defaults: Defaults) -> ChatRequest:
    """Raises ApiError 400."""
    messages = check_messages(required(body, "messages", list))
    logprobs = optional(body, "logprobs", bool, False)
    top = whole(body, "top_logprobs", 0, MAX_LOGPROBS)
    if top is not None and not logprobs:
        raise bad_request("top_logprobs", "wanted only with logprobs: true")
    return ChatRequest(
        **_common(body, defaults, _n_probs(body, (top or 0) if logprobs else None)),
        messages=messages,
        tools=_tools(body),
        template_kwargs=parse_template_kwargs(body, defaults),
    )


def parse_completion(body: Mapping[str, object], defaults: Defaults) -> CompletionRequest:
    """Raises ApiError 400."""
    if body.get("prompt") is None:
        raise bad_request("prompt", "missing, wanted text or a list of token ids")
    prompt = body["prompt"]
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]  # a list of prompts
    if not isinstance(prompt, str) and not (isinstance(prompt, list) and prompt and all(map(is_whole, prompt))):
        raise bad_request(
            "prompt", f"found {shown(prompt)}, wanted text or a list of token ids, one prompt for each request"
        )
    num_logprobs = _n_probs(
        body, whole(body, "logprobs", 0, MAX_LOGPROBS) if body.get("logprobs") is not False else None
    )
    return CompletionRequest(**_common(body, defaults, num_logprobs), prompt=prompt)


def parse_template_kwargs(body: Mapping[str, object], defaults: Defaults) -> dict[str, object]:
    """The template's variables, the server's and the request's."""
    given = {**defaults.template_kwargs, **optional(body, "chat_template_kwargs", dict, {})}
    try:
        return template_variables(given)
    except RequestError as error:
        raise ApiError(400, str(error), param="chat_template_kwargs") from None


def _common(body: Mapping[str, object], defaults: Defaults, num_logprobs: int | None) -> dict[str, object]:
    _refuse(body)
    options = optional(body, "stream_options", dict, {})
    return {
        "sampling": _sampling(body, defaults.sampling),
        "max_tokens": _max_tokens(body, defaults.max_tokens),
        "stop": _stop(body),
        "stream": optional(body, "stream", bool, False),
        "include_usage": optional(options, "include_usage", bool, False),
        "num_logprobs": num_logprobs,
        "return_progress": optional(body, "return_progress", bool, False),
        "specprefill": parse_specprefill(body, defaults.spec),
        "cache_prompt": optional(body, "cache_prompt", bool, True),
    }


def _refuse(body: Mapping[str, object]) -> None:
    for name, neutral in REFUSED.items():
        value = body.get(name)
        if value is not None and not any(
            value == other and isinstance(value, bool) == isinstance(other, bool) for other in neutral
        ):
            more = {"n": ", wanted 1: ask again for another answer", "functions": "; use tools"}.get(name, "")
            raise bad_request(name, f"found {shown(value)}, which is not supported{more}")
    kind = optional(body, "response_format", dict, {}).get("type", "text")
    if kind != "text":
        raise bad_request(
            "response_format",
            f'found type {shown(kind)}, only {{"type": "text"}} is supported: there is no grammar-guided sampling',
        )
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise bad_request("tool_choice", f"found {shown(choice)}, wanted auto or none: a call cannot be forced")


def _sampling(body: Mapping[str, object], base: SamplingConfig) -> SamplingConfig:
    given = {name: value for name, kind in SAMPLING.items() if (value := optional(body, name, kind)) is not None}
    if given.get("seed") == -1:  # llama.cpp's word for a new one each time
        given["seed"] = None
    try:
        return replace(base, **given)
    except RequestError as error:
        raise as_api_error(error) from None


def _max_tokens(body: Mapping[str, object], most: int | None) -> int | None:
    """OpenAI's two names and llama.cpp's. -1: until the end of the answer or the context."""
    for name in ("max_completion_tokens", "max_tokens", "n_predict"):
        value = whole(body, name, -1, MAX_TOKENS)
        if value == 0:
            raise bad_request(name, "found 0, wanted at least 1, or -1 for no limit")
        if value is not None and value > 0:
            return min(value, most or value)
    return most


def _stop(body: Mapping[str, object]) -> tuple[str, ...]:
    stop = body.get("stop")
    stops = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if (
        not isinstance(stops, list)
        or len(stops) > MAX_STOPS
        or not all(isinstance(s, str) and 0 < len(s) <= MAX_STOP_CHARS for s in stops)
    ):
        raise bad_request(
            "stop",
            f"found {shown(stop) or 'nothing'}, wanted text or up to {MAX_STOPS} texts "
            f"of 1 to {MAX_STOP_CHARS} characters",
        )
    return tuple(stops)


def _n_probs(body: Mapping[str, object], num_logprobs: int | None) -> int | None:
    """llama.cpp's name for the same thing; 0 is none."""
    count = whole(body, "n_probs", 0, MAX_LOGPROBS)
    return count if count else num_logprobs


def _tools(body: Mapping[str, object]) -> list[dict[str, object]] | None:
    tools = check_tools(optional(body, "tools", list))
    return None if body.get("tool_choice") == "none" else tools


def parse_specprefill(body: Mapping[str, object], base: SpecPrefillConfig | None) -> SpecPrefillRequest:
    """The fields of speculative prefill.

    specprefill: true, false, or an object of settings, which may hold `kept_ranges`, an earlier answer's;
    specprefill_keep_pct and speculative_prefill_keep_pct: how much to keep, a share up to 1 or a percentage above
    it, by mode "chunk"; specprefill_details: true for the prompt's tokens and their importance in the answer.
    """
    value, details = body.get("specprefill"), optional(body, "specprefill_details", bool, False)
    settings: dict[str, object] = {}
    for name in KEEP_FIELDS:
        percent = optional(body, name, float)
        if percent is not None:
            if not 0 < percent <= 100:
                raise bad_request(
                    name, f"found {shown(percent)}, wanted a share above 0 up to 1, or a percentage up to 100"
                )
            settings = {"keep_ratio": percent if percent <= 1 else percent / 100, "select_mode": "chunk"}
    if value is not None and not isinstance(value, bool | dict):
        raise bad_request("specprefill", f"found {shown(value)}, wanted true, false or an object of settings")
    given = dict(value) if isinstance(value, dict) else {}
    kept_ranges = optional(given, "kept_ranges", list)
    given.pop("kept_ranges", None)
    try:
        config = SpecPrefillConfig.from_dict({**settings, **given}, base)
    except RequestError as error:
        raise ApiError(400, str(error), param="specprefill") from None
    return SpecPrefillRequest(value is not False, config if base is not None else None, kept_ranges, details)
