"""OpenAI's Responses API over the chat core: a body of theirs -> one of /v1/chat/completions. Earlier responses are
remembered, as many as there is room for.

A custom tool, which takes text, is a function with one parameter there.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping

from vkprefill.server.api_error import ApiError, bad_request
from vkprefill.server.protocol.kinds import (
    Boolean,
    Choice,
    Either,
    Items,
    Json,
    Kind,
    Neutral,
    Noted,
    Number,
    Record,
    Text,
    Whole,
    check,
)
from vkprefill.server.protocol.tables import BESIDE, EFFORTS, MAX_TOKENS, OF_DRAFTS

MAX_REMEMBERED = 1000
MAX_CHARACTERS = 2**25  # of the conversations that are remembered
NOT_HERE = "; tools that run at the service are not here"
CUSTOM, INPUT = "custom", "input"  # the kind of a tool that takes text, and its parameter
FUNCTION_CALL, CUSTOM_CALL = CALLS = ("function_call", "custom_tool_call")
OUTPUTS = ("function_call_output", "custom_tool_call_output")
TEXT_PART = Record({"type": Choice(("input_text", "output_text", "text")), "text": Text()}, ("type", "text"))
ITEM = Record(
    {
        "type": Choice(("message", *CALLS, *OUTPUTS, "reasoning")),
        "role": Choice(("system", "developer", "user", "assistant")),
        "content": Either((Text(), Items(Record())), "text or a list of parts"),
        "name": Text(1),
        "call_id": Text(),
        "arguments": Text(),
        "input": Text(),
        "output": Either((Text(), Items(TEXT_PART)), "text or a list of text parts"),
    }
)
TOOL = Record(
    {
        "type": Choice(("function", CUSTOM), NOT_HERE),
        "name": Text(1),
        "description": Text(),
        "parameters": Record(),
        "strict": Boolean(),
        "format": Noted("of a custom tool", Record({"type": Choice(("text",))}, ("type",))),
    },
    ("type", "name"),
)
FORMAT = Record({"type": Choice(("text", "json_object", "json_schema")), "name": Text(), "schema": Record()}, ("type",))
NAMED_TOOL = Record({"type": Choice(("function", CUSTOM)), "name": Text(1)}, ("type", "name"))
OWN: dict[str, Kind] = {
    "model": Text(),
    "input": Either((Text(1), Items(ITEM, least=1)), "text or a list of items"),
    "instructions": Text(),
    "previous_response_id": Text(),
    "store": Noted("false: not remembered for previous_response_id", Boolean()),
    "stream": Boolean(),
    "max_output_tokens": Whole(1, MAX_TOKENS),
    "temperature": Number(0, 2),
    "top_p": Number(0, 1),
    "top_logprobs": Neutral((0,)),
    "tools": Items(TOOL),
    "tool_choice": Either((Choice(("auto", "none", "required")), NAMED_TOOL), "auto, none, required or a tool"),
    "parallel_tool_calls": Boolean(),
    "text": Record({"format": FORMAT, "verbosity": Neutral(("medium",))}),
    "reasoning": Record({"effort": Choice(EFFORTS)}),
    "background": Neutral((False,)),
    "truncation": Neutral(("disabled",)),
    "conversation": Neutral(()),
    "prompt": Neutral(()),
    "max_tool_calls": Noted("of tools that run at the service, of which there are none", Whole(1)),
    **{name: Neutral((), "; use max_output_tokens") for name in ("max_tokens", "max_completion_tokens", "n_predict")},
    "response_format": Neutral((), "; use text.format"),
}
RESPONSES = Record({**BESIDE, **OWN}, ("input",), closed=OF_DRAFTS)
PASSED = (*(BESIDE.keys() - OWN.keys()), "model", "stream", "temperature", "top_p", "parallel_tool_calls")


class Remembered:
    """Messages of earlier responses by their ids; the oldest are forgotten. For several threads."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[list[Json], int]] = OrderedDict()
        self._characters = 0
        self._lock = threading.Lock()

    def find(self, name: str) -> list[Json]:
        """ApiError 404 for one that is not there."""
        with self._lock:
            if name not in self._kept:
                message = f"previous_response_id: found {name!r}, which is not remembered; send the whole conversation"
                raise ApiError(404, message, param="previous_response_id", code="previous_response_not_found")
            return self._kept[name][0]

    def keep(self, name: str, messages: list[Json]) -> None:
        size = len(repr(messages))
        with self._lock:
            self._kept[name] = messages, size
            self._characters += size
            while self._characters > MAX_CHARACTERS or len(self._kept) > MAX_REMEMBERED:
                _, (_, freed) = self._kept.popitem(last=False)
                self._characters -= freed


def as_chat(body: Json, remembered: Remembered) -> tuple[Json, Json, list[Json]]:
    """(the body of /v1/chat/completions that asks the same, the checked fields, messages without the instructions,
    which hold for this response alone). ApiError for one that cannot be asked here."""
    asked = check(RESPONSES, body)
    chat: Json = {name: asked[name] for name in PASSED if name in asked}
    before = remembered.find(asked["previous_response_id"]) if "previous_response_id" in asked else []
    messages = [*before, *messages_of(asked["input"])]
    system = [{"role": "system", "content": asked["instructions"]}] if asked.get("instructions") else []
    chat["messages"] = system + messages
    if "max_output_tokens" in asked:
        chat["max_tokens"] = asked["max_output_tokens"]
    if asked.get("tools"):
        chat["tools"] = [_tool(tool) for tool in asked["tools"]]
    choice = asked.get("tool_choice", "auto")
    named = isinstance(choice, Mapping)
    chat["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}} if named else choice
    form = asked.get("text", {}).get("format", {"type": "text"})
    if form["type"] == "json_schema":
        chat["response_format"] = {"type": "json_schema", "json_schema": {"schema": form.get("schema")}}
    else:
        chat["response_format"] = {"type": form["type"]}
    if effort := asked.get("reasoning", {}).get("effort"):
        chat["reasoning_effort"] = effort
    return chat, asked, messages


def _tool(tool: Json) -> Json:
    names = ("name", "description", "parameters", "strict") if tool["type"] != CUSTOM else ("name", "description")
    function = {name: tool[name] for name in names if name in tool}
    if tool["type"] == CUSTOM:
        function["parameters"] = {"type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT]}
    return {"type": "function", "function": function}


def messages_of(given: str | list[Json]) -> list[Json]:
    """Items that belong to one answer, its reasoning, text and calls, become one message."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[Json] = []
    for index, item in enumerate(given):
        where, kind = f"input[{index}]", item.get("type", "message")
        if kind in OUTPUTS:
            text = _joined(_wanted(item, "output", where), f"{where}.output")
            messages.append({"role": "tool", "tool_call_id": item.get("call_id", ""), "content": text})
        elif kind == "message" and _wanted(item, "role", where) != "assistant":
            text = _joined(_wanted(item, "content", where), f"{where}.content")
            messages.append({"role": item["role"], "content": text})
        else:
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            _add(messages[-1], kind, item, where)
    return messages


def _add(message: Json, kind: str, item: Json, where: str) -> None:
    """What an item says to the assistant's message that it is a part of."""
    if kind in CALLS:
        arguments = item.get("arguments", "{}") if kind == FUNCTION_CALL else _with_input(_wanted(item, INPUT, where))
        function = {"name": _wanted(item, "name", where), "arguments": arguments}
        call = {"id": item.get("call_id", ""), "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(call)
    elif kind == "reasoning":
        content = item.get("content") or []
        texts = [part["text"] for part in content if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
        if texts:
            message["reasoning_content"] = message.get("reasoning_content", "") + "".join(texts)
    else:
        message["content"] += _joined(_wanted(item, "content", where), f"{where}.content")


def _with_input(text: str) -> str:
    return json.dumps({INPUT: text}, ensure_ascii=False)


def _wanted(item: Json, name: str, where: str) -> object:
    if item.get(name) is None:
        raise bad_request(f"{where}.{name}", f"missing, wanted {ITEM.fields[name].wanted}")
    return item[name]


def _joined(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    for index, part in enumerate(content):
        if part.get("type") not in ("input_text", "output_text", "text") or not isinstance(part.get("text"), str):
            raise bad_request(f"{where}[{index}]", "only parts of text are understood")
    return "".join(part["text"] for part in content)
