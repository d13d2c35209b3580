"""Anthropic's Messages API over the chat core: a body of theirs -> one of /v1/chat/completions, and that endpoint's
answers, whole or in chunks, -> theirs.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from vkprefill.server.api_error import ApiError, bad_request
from vkprefill.server.engine.jobs import Done
from vkprefill.server.protocol.answers import calls_of, ours_of
from vkprefill.server.protocol.kinds import (
    Boolean,
    Choice,
    Either,
    Items,
    Json,
    Kind,
    Neutral,
    Number,
    Record,
    Text,
    Whole,
    check,
)
from vkprefill.server.protocol.tables import BESIDE, MAX_TOKENS, OF_DRAFTS, STOP

TEXT_BLOCK = Record({"type": Choice(("text",)), "text": Text()}, ("type", "text"))
BLOCK = Record(
    {
        "type": Choice(("text", "tool_use", "tool_result", "thinking", "redacted_thinking")),
        "text": Text(),
        "thinking": Text(),
        "id": Text(),
        "name": Text(),
        "input": Record(),
        "tool_use_id": Text(),
        "content": Either((Text(), Items(TEXT_BLOCK)), "text or a list of text blocks"),
        "is_error": Boolean(),
    },
    ("type",),
)
MESSAGE = Record(
    {
        "role": Choice(("user", "assistant", "system")),
        "content": Either((Text(), Items(BLOCK)), "text or a list of blocks"),
    },
    ("role", "content"),
)
TOOL = Record(
    {
        "type": Choice(("custom",), "; tools of the service itself are not here"),
        "name": Text(1),
        "description": Text(),
        "input_schema": Record(),
        "strict": Boolean(),
    },
    ("name",),
)
FORMAT = Record({"type": Choice(("json_schema",)), "schema": Record()}, ("type", "schema"))
FIELDS: dict[str, Kind] = {
    "model": Text(),
    "messages": Items(MESSAGE, least=1),
    "system": Either((Text(), Items(TEXT_BLOCK)), "text or a list of text blocks"),
    "tools": Items(TOOL),
    "tool_choice": Record(
        {"type": Choice(("auto", "any", "tool", "none")), "name": Text(1), "disable_parallel_tool_use": Boolean()},
        ("type",),
    ),
    "thinking": Record(
        {"type": Choice(("enabled", "disabled", "adaptive")), "budget_tokens": Whole(0, MAX_TOKENS)}, ("type",)
    ),
    "output_format": FORMAT,
    "output_config": Record({"format": FORMAT}),
    "mcp_servers": Items(Record(), 0, 0),
}
COUNT = Record(FIELDS, ("messages",))
OWN: dict[str, Kind] = {
    **FIELDS,
    "max_tokens": Whole(1, MAX_TOKENS),
    "stop_sequences": Items(STOP, 0, 16),
    "stream": Boolean(),
    "temperature": Number(0, 1),
    "top_p": Number(0, 1),
    "top_k": Whole(0, MAX_TOKENS),
    "stop": Neutral((), "; use stop_sequences"),
    **{name: Neutral((), "; use max_tokens") for name in ("max_completion_tokens", "n_predict")},
    "response_format": Neutral((), "; use output_config.format"),
}
MESSAGES = Record({**BESIDE, **OWN}, ("messages", "max_tokens"), closed=OF_DRAFTS)
PASSED = (*(BESIDE.keys() - OWN.keys()), "model", "max_tokens", "stream", "temperature", "top_p", "top_k")
ERRORS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large"}
BUSY = (503, "overloaded_error")
CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def as_chat(body: Json, *, count: bool = False) -> Json:
    """The body of /v1/chat/completions that asks the same. ApiError 400 for one that cannot be asked here.

    count: the request counts tokens only, so that what concerns the answer may be missing.
    """
    asked = check(COUNT if count else MESSAGES, body)
    chat: Json = {name: asked[name] for name in PASSED if name in asked}
    chat["messages"] = _system(asked.get("system")) + [
        message for index, one in enumerate(asked["messages"]) for message in _messages(one, f"messages[{index}]")
    ]
    if "tools" in asked:
        chat["tools"] = [_tool(tool) for tool in asked["tools"]]
    if stops := asked.get("stop_sequences"):
        chat["stop"] = stops
    chat |= _choice(asked.get("tool_choice", {"type": "auto"}))
    chat |= _thinking(asked.get("thinking"))
    form = asked.get("output_config", {}).get("format", asked.get("output_format"))
    if form is not None:
        chat["response_format"] = {"type": "json_schema", "json_schema": {"schema": form["schema"]}}
    return chat


def _system(system: object) -> list[Json]:
    if system is None:
        return []
    text = system if isinstance(system, str) else "\n\n".join(block["text"] for block in system)
    return [{"role": "system", "content": text}] if text else []


def _tool(tool: Json) -> Json:
    function = {"name": tool["name"], "parameters": tool.get("input_schema", {"type": "object"})}
    function |= {name: tool[name] for name in ("description", "strict") if name in tool}
    return {"type": "function", "function": function}


def _choice(choice: Json) -> Json:
    parallel = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {}
    if choice["type"] != "tool":
        return {"tool_choice": CHOICES[choice["type"]], **parallel}
    if "name" not in choice:
        raise bad_request("tool_choice.name", "missing, wanted the name of a tool")
    return {"tool_choice": {"type": "function", "function": {"name": choice["name"]}}, **parallel}


def _thinking(thinking: Json | None) -> Json:
    """Without the field: as the model's template has it."""
    if thinking is None:
        return {}
    chat: Json = {"enable_thinking": thinking["type"] != "disabled"}
    if thinking["type"] == "enabled" and "budget_tokens" in thinking:
        chat["thinking_budget"] = thinking["budget_tokens"]
    return chat


def _messages(message: Json, where: str) -> Iterator[Json]:
    """Results of tools are messages of their own, before what else the user says."""
    content = message["content"]
    if isinstance(content, str):
        yield {"role": message["role"], "content": content}
        return
    texts, thoughts, calls, results = [], [], [], 0
    for index, block in enumerate(content):
        at = f"{where}.content[{index}]"
        kind = block["type"]
        if kind == "text":
            texts.append(_text(block, "text", at))
        elif kind == "thinking":
            thoughts.append(_text(block, "thinking", at))
        elif kind == "tool_use":
            function = {"name": _text(block, "name", at), "arguments": _json(block.get("input", {}), f"{at}.input")}
            calls.append({"id": block.get("id", ""), "type": "function", "function": function})
        elif kind == "tool_result":
            results += 1
            result = {"role": "tool", "content": _result(block)}
            yield {**result, "tool_call_id": block.get("tool_use_id", "")}
    if texts or thoughts or calls or not results:
        done: Json = {"role": message["role"], "content": "\n\n".join(texts)}
        if thoughts:
            done["reasoning_content"] = "\n\n".join(thoughts)
        if calls:
            done["tool_calls"] = calls
        yield done


def _json(value: object, where: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise bad_request(where, "nested too deeply") from None


def _text(block: Json, name: str, where: str) -> str:
    if name not in block:
        raise bad_request(f"{where}.{name}", "missing, wanted text")
    return block[name]


def _result(block: Json) -> str:
    """The text of a tool's result; one that failed says so."""
    content = block.get("content", "")
    if not isinstance(content, str):
        content = "\n".join(part["text"] for part in content)
    return f"Error: {content}" if block.get("is_error") else content


@dataclass
class MessagesAnswer:
    """One answer: of a whole chat completion, or of its chunks in order. prompt_n: tokens of the prompt."""

    model: str
    prompt_n: int

    def __post_init__(self) -> None:
        self._id = f"msg_{secrets.token_hex(12)}"
        self._block: str | None = None  # kind of the block that is open
        self._index = -1
        self._called = False

    def whole(self, chat: Json, done: Done) -> Json:
        message = chat["choices"][0]["message"]
        content = []
        if reasoning := message.get("reasoning_content"):
            content.append({"type": "thinking", "thinking": reasoning, "signature": ""})
        if message["content"]:
            content.append({"type": "text", "text": message["content"]})
        content += [{**_use(call), "input": json.loads(call["function"]["arguments"])} for call in calls_of(message)]
        reason = _stop_reason(done, bool(calls_of(message)))
        return {**self._head(content), **reason, "usage": _usage(chat["usage"]), **ours_of(chat)}

    def begin(self) -> Iterator[Json]:
        usage = {"input_tokens": self.prompt_n, "output_tokens": 0}
        message = {**self._head([]), "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield {"type": "message_start", "message": message}

    def chunk(self, chunk: Json) -> Iterator[Json]:
        """The events that a chunk of a chat completion makes."""
        if "revised_from" in chunk:
            yield {"type": "revision", **{name: chunk[name] for name in ("revised_from", "text")}}
        for choice in chunk["choices"]:
            delta = choice["delta"]
            if text := delta.get("reasoning_content"):
                yield from self._open("thinking", {"type": "thinking", "thinking": "", "signature": ""})
                yield self._delta({"type": "thinking_delta", "thinking": text})
            if text := delta.get("content"):
                yield from self._open("text", {"type": "text", "text": ""})
                yield self._delta({"type": "text_delta", "text": text})
            for call in calls_of(delta):
                self._called = True
                yield from self._close()
                yield from self._open("tool_use", {**_use(call), "input": {}})
                yield self._delta({"type": "input_json_delta", "partial_json": call["function"]["arguments"]})

    def end(self, last: Json, done: Done) -> Iterator[Json]:
        """last: the chunk with the usage."""
        yield from self._close()
        reason = _stop_reason(done, self._called)
        yield {"type": "message_delta", "delta": reason, "usage": _usage(last["usage"]), **ours_of(last)}
        yield {"type": "message_stop"}

    def _head(self, content: list[Json]) -> Json:
        return {"id": self._id, "type": "message", "role": "assistant", "model": self.model, "content": content}

    def _open(self, kind: str, block: Json) -> Iterator[Json]:
        if self._block == kind:
            return
        yield from self._close()
        self._block, self._index = kind, self._index + 1
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _close(self) -> Iterator[Json]:
        if self._block is not None:
            self._block = None
            yield {"type": "content_block_stop", "index": self._index}

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


def error_body(error: ApiError) -> Json:
    """As their clients read it, with what OpenAI's have besides."""
    kind = "invalid_request_error" if error.status < 500 else "api_error"
    kind = BUSY[1] if error.status == BUSY[0] else ERRORS.get(error.status, kind)
    return {"type": "error", "error": {**error.body()["error"], "type": kind}}


def _use(call: Json) -> Json:
    return {"type": "tool_use", "id": call["id"].replace("call_", "toolu_", 1), "name": call["function"]["name"]}


def _stop_reason(done: Done, called: bool) -> Json:
    if done.stop_text is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": done.stop_text}
    ended = done.finish_reason != "length"
    return {"stop_reason": ("tool_use" if called else "end_turn") if ended else "max_tokens", "stop_sequence": None}


def _usage(usage: Json) -> Json:
    """Theirs counts tokens from the cache apart."""
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {
        "input_tokens": usage["prompt_tokens"] - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage["completion_tokens"],
    }
