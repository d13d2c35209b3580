"""Turns bodies into checked requests: pure functions over the tables of fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from vkprefill.drafting.settings import NONE, SpecDecodeConfig
from vkprefill.engine.sizes import MAX_DRAFTS
from vkprefill.errors import RequestError
from vkprefill.generation.prompt import THINKING, template_variables
from vkprefill.generation.sampling import LIMITS, SamplingConfig
from vkprefill.grammar.grammars import Grammar
from vkprefill.server.api_error import ApiError, bad_request
from vkprefill.server.protocol.forms import form_of
from vkprefill.server.protocol.kinds import Json, Wrong, check
from vkprefill.server.protocol.messages import Message, for_template
from vkprefill.server.protocol.tables import (
    APPLY_TEMPLATE,
    BIAS_OF_ONE,
    BUDGETS,
    CHAT,
    COMPLETION,
    DRAFTS,
    OF_DRAFTS,
    TOKEN_ID,
)
from vkprefill.specprefill.settings import DRAFT, SELF, SpecPrefillConfig
from vkprefill.text.chat_template import begun_answer

SAMPLING = tuple(LIMITS)
NEVER = -1e6  # a bias after which a token is not drawn while there is any other
SETTINGS = ("kept_ranges", *(setting.name for setting in fields(SpecPrefillConfig)))
KEEP_FIELDS = ("specprefill_keep_pct", "speculative_prefill_keep_pct")


@dataclass(frozen=True)
class SpecPrefillRequest:
    """enabled: False for a dense answer; settings: the effective ones (None where speculative prefill is off and the
    request has none); kept_ranges: an earlier answer's choice; details: tell tokens and importance too."""

    enabled: bool = True
    settings: SpecPrefillConfig | None = None
    kept_ranges: list[list[int]] | None = None
    details: bool = False


@dataclass(frozen=True)
class AnswerRequest:
    """What chat and plain completions have in common. n: answers to each prompt;
    num_logprobs: None for none; layer_map: told with the answer; cache_prompt: False to take nothing
    from earlier prompts; grammar: what the answer has to be; ends: arguments of AnswerOptions that say
    where it ends."""

    sampling: SamplingConfig
    max_tokens: int | None
    n: int
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    num_logprobs: int | None
    return_progress: bool
    layer_map: bool
    specprefill: SpecPrefillRequest
    cache_prompt: bool
    decode: SpecDecodeConfig
    grammar: Grammar | None
    ends: Json


@dataclass(frozen=True)
class Conversation:
    """What the chat template is given. generation_prompt: the prompt ends where a new answer begins; continued: it ends
    inside of the last message, which the answer goes on with."""

    messages: list[Message]
    tools: list[Json] | None = None
    template_kwargs: Json = field(default_factory=dict)
    generation_prompt: bool = True
    continued: bool = False


@dataclass(frozen=True)
class ChatRequest(AnswerRequest):
    """split_reasoning: False leaves it in the content."""

    conversation: Conversation
    split_reasoning: bool = True


@dataclass(frozen=True)
class CompletionRequest(AnswerRequest):
    """prompts: text, or token ids as they stand; echo: they come before their answers."""

    prompts: list[str | list[int]] = field(default_factory=list)
    echo: bool = False


@dataclass(frozen=True)
class Defaults:
    """What requests that say nothing get. spec: None without a scorer; own_spec: what a request's
    settings are laid over then; max_tokens: of an answer, the most that any request gets; answer_tokens: of one for
    which the request has no limit of its own."""

    sampling: SamplingConfig = SamplingConfig()
    spec: SpecPrefillConfig | None = None
    own_spec: SpecPrefillConfig = SpecPrefillConfig()
    max_tokens: int | None = None
    answer_tokens: int | None = None
    template_kwargs: Mapping[str, object] = field(default_factory=dict)
    decode: SpecDecodeConfig = SpecDecodeConfig()

    @property
    def has_draft(self) -> bool:
        return self.spec is not None and self.spec.scorer != SELF


def parse_chat(body: Mapping[str, object], defaults: Defaults) -> ChatRequest:
    """Raises ApiError 400."""
    asked = check(CHAT, body)
    logprobs, top = asked.get("logprobs", False), asked.get("top_logprobs", 0)
    if top and not logprobs:
        raise bad_request("top_logprobs", f"found {top}, wanted only with logprobs: true")
    conversation = _conversation(asked, defaults)
    grammar = form_of(asked, conversation.tools)
    if grammar is not None and conversation.continued:
        raise bad_request("continue_final_message", "the answer has a form of its own, so it cannot go on with one")
    return ChatRequest(
        **_common(asked, defaults, top if logprobs else None),
        grammar=grammar,
        ends=_ends(asked, grammar),
        conversation=conversation,
        split_reasoning=asked.get("reasoning_format") != "none",
    )


def parse_completion(body: Mapping[str, object], defaults: Defaults) -> CompletionRequest:
    """Raises ApiError 400."""
    asked = check(COMPLETION, body)
    given, logprobs = asked["prompt"], asked.get("logprobs", False)
    prompts = given if isinstance(given, list) and isinstance(given[0], str | list) else [given]
    if len(prompts) > 1 and asked.get("layer_map"):
        raise bad_request("prompt", f"found {len(prompts)} prompts beside layer_map: true, wanted one")
    common = _common(asked, defaults, None if logprobs is False else logprobs)
    grammar = form_of(asked, None)
    return CompletionRequest(
        **common, grammar=grammar, ends=_ends(asked, grammar), prompts=prompts, echo=asked.get("echo", False)
    )


def parse_conversation(body: Mapping[str, object], defaults: Defaults) -> Conversation:
    """The part of a chat request that makes its prompt. Raises ApiError 400."""
    return _conversation(check(APPLY_TEMPLATE, body), defaults)


def _conversation(asked: Json, defaults: Defaults) -> Conversation:
    messages = for_template(asked["messages"])
    tools = asked.get("tools") if asked.get("tool_choice") != "none" else None
    goes_on, generation_prompt = _goes_on(asked, messages), asked.get("add_generation_prompt", True)
    if goes_on and not begun_answer(messages):  # nothing is there yet to go on with
        messages, goes_on, generation_prompt = messages[:-1], False, True
    return Conversation(
        messages, tools or None, _template_kwargs(asked, defaults), generation_prompt and not goes_on, goes_on
    )


def _goes_on(asked: Json, messages: list[Message]) -> bool:
    """Whether the answer goes on with the last message: with an assistant's it does, as in llama-server,
    unless the request says otherwise, by either of vLLM's two fields."""
    prompt, wanted = asked.get("add_generation_prompt"), asked.get("continue_final_message")
    if wanted and prompt:
        raise bad_request("continue_final_message", "found true beside add_generation_prompt: true, wanted one of them")
    possible = messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls")
    if wanted and not possible:
        raise bad_request("continue_final_message", "found true, but the last message is no text of the assistant")
    return possible if wanted is None and prompt is None else bool(wanted)


def _template_kwargs(asked: Json, defaults: Defaults) -> Json:
    """The template's variables: the server's, and over them the request's. Of its three ways to switch thinking,
    chat_template_kwargs comes before enable_thinking, and that before reasoning_effort."""
    effort = asked.get("reasoning_effort")
    thinking = asked.get("enable_thinking", None if effort is None else effort != "none")
    named = {"reasoning_effort": effort, THINKING: thinking}
    given = {name: value for name, value in named.items() if value is not None}
    try:
        return template_variables({**defaults.template_kwargs, **given, **asked.get("chat_template_kwargs", {})})
    except RequestError as error:
        raise ApiError(400, str(error), param="chat_template_kwargs") from None


def _common(asked: Json, defaults: Defaults, num_logprobs: int | None) -> Json:
    return {
        "sampling": _sampling(asked, defaults.sampling),
        "max_tokens": _max_tokens(asked, defaults),
        "stop": _stop(asked),
        "n": _answers(asked),
        "stream": asked.get("stream", False),
        "include_usage": asked.get("stream_options", {}).get("include_usage", False),
        "num_logprobs": asked.get("n_probs") or num_logprobs,  # llama.cpp's name for the same; 0 is none
        "return_progress": asked.get("return_progress", False),
        "layer_map": asked.get("layer_map", False),
        "specprefill": _specprefill(asked, defaults),
        "cache_prompt": asked.get("cache_prompt", True),
        "decode": _decode(asked, defaults.decode),
    }


def _answers(asked: Json) -> int:
    count = asked.get("n", 1)
    if count > 1 and asked.get("layer_map"):
        raise bad_request("n", f"found {count} beside layer_map: true, wanted 1")
    return count


def _sampling(asked: Json, base: SamplingConfig) -> SamplingConfig:
    given = {name: asked[name] for name in SAMPLING if name in asked}
    if given.get("seed") == -1:  # llama.cpp's word for a new one each time
        given["seed"] = None
    if given.get("top_k") == -1:
        given["top_k"] = 0
    if "repetition_penalty" in asked:
        if "repeat_penalty" in asked:
            raise bad_request("repetition_penalty", "found one beside repeat_penalty, wanted one of them")
        given |= {"repeat_penalty": asked["repetition_penalty"], "repeat_last_n": -1}
    if "logit_bias" in asked:
        given["logit_bias"] = _bias(asked["logit_bias"])
    return replace(base, **given)


def _bias(given: Json | list[list[object]]) -> tuple[tuple[int, float], ...]:
    """Pairs of a token id and what is added to its logit."""
    biases = []
    for key, value in given.items() if isinstance(given, dict) else given:
        if isinstance(key, str) and key.isascii() and key.isdecimal():
            key = int(key[:20])
        try:
            token_id = TOKEN_ID.read(key)
            bias = BIAS_OF_ONE.read(value)
        except Wrong as wrong:
            raise bad_request("logit_bias", wrong.message) from None
        biases.append((token_id, NEVER if bias is False else bias))
    return tuple(biases)


def _ends(asked: Json, grammar: Grammar | None) -> Json:
    """The fields of where an answer ends, but for max_tokens and stop."""
    for name in ("ignore_eos", "min_tokens"):
        if grammar is not None and asked.get(name):
            raise bad_request(name, "found one beside a form of the answer, which says where it ends")
    budgets = [asked[name] for name in BUDGETS if asked.get(name, -1) >= 0]
    return {
        "ignore_eos": asked.get("ignore_eos", False),
        "min_tokens": asked.get("min_tokens", 0),
        "stop_token_ids": tuple(asked.get("stop_token_ids", ())),
        "thinking_tokens": min(budgets, default=None),
    }


def _decode(asked: Json, base: SpecDecodeConfig) -> SpecDecodeConfig:
    """The fields of drafts, llama-server's or those of an object, over the server's settings. n_max 0: none; above the
    most there can be: that. An n_min above n_max is lowered, unless the request names both."""
    flat = {name: asked[OF_DRAFTS + name] for name in DRAFTS if OF_DRAFTS + name in asked}
    given = asked.get("speculative", {}) | flat
    kind = given.pop("types", given.get("type", base.type))
    if given.get("type", kind) != kind:
        raise bad_request(OF_DRAFTS + "types", f"found {kind} beside type {given['type']}, wanted one of them")
    most, least = given.get("n_max"), given.get("n_min", 0)
    if most and least > most:
        raise bad_request(OF_DRAFTS + "n_min", f"found {least}, wanted at most n_max, which is {most}")
    n_max = min(given.get("n_max", base.n_max), MAX_DRAFTS)
    if n_max == 0:
        return replace(base, type=NONE)
    given |= {"type": kind, "n_max": n_max, "n_min": min(given.get("n_min", base.n_min), n_max)}
    return replace(base, **given)


def _max_tokens(asked: Json, defaults: Defaults) -> int | None:
    """OpenAI's two names and llama.cpp's. -1: until the end of the answer or the context."""
    given = [asked[name] for name in ("max_completion_tokens", "max_tokens", "n_predict") if name in asked]
    if not given:
        return defaults.max_tokens or defaults.answer_tokens
    limits = [next((value for value in given if value >= 0), None), defaults.max_tokens]
    return min((limit for limit in limits if limit is not None), default=None)


def _stop(asked: Json) -> tuple[str, ...]:
    """The texts that end the answer; empty ones are left out."""
    stop = asked.get("stop", [])
    return tuple(text for text in ([stop] if isinstance(stop, str) else stop) if text)


def _specprefill(asked: Json, defaults: Defaults) -> SpecPrefillRequest:
    """The fields of speculative prefill.

    specprefill: true, false, or an object of settings, which may hold `kept_ranges`, an earlier answer's;
    specprefill_keep_pct and speculative_prefill_keep_pct: how much to keep, a share up to 1 or a percentage above
    it, by mode "chunk"; specprefill_details: true for the prompt's tokens and their importance in the answer.
    """
    value, details = asked.get("specprefill", True), asked.get("specprefill_details", False)
    settings: dict[str, object] = dict(value) if isinstance(value, dict) else {}
    for name in KEEP_FIELDS:
        if name in asked:
            keep = asked[name]
            for setting, one in {"keep_ratio": keep if keep <= 1 else keep / 100, "select_mode": "chunk"}.items():
                if settings.setdefault(setting, one) != one:
                    beside = f"{setting} {settings[setting]}"
                    raise bad_request(name, f"found {keep:g}, which is {setting} {one}, beside {beside}, wanted one")
    if defaults.spec is None and not settings:
        return SpecPrefillRequest(value is not False, None, None, details)
    kept_ranges = settings.pop("kept_ranges", None)
    try:
        config = SpecPrefillConfig.from_dict(settings, defaults.spec or defaults.own_spec)
    except RequestError as error:
        raise of_setting(ApiError(400, str(error)), "specprefill") from None
    if config.scorer == DRAFT and not defaults.has_draft:
        raise bad_request("specprefill.scorer", "found draft, but there is no draft model; wanted self")
    return SpecPrefillRequest(value is not False, config, kept_ranges, details)


def of_setting(error: ApiError, otherwise: str | None = None) -> ApiError:
    """The same error, named as the request's field is, where it begins with the name of a setting of speculative
    prefill. otherwise: the field of any other.
    """
    if error.status != 400 or error.param is not None:
        return error
    name, *_ = [*error.message.partition(":")[0].split(), ""]
    if name in SETTINGS:
        return ApiError(400, f"specprefill.{error.message}", param=f"specprefill.{name}", code=error.code)
    error.param = otherwise
    return error
