"""OpenAI's Responses API over the chat core: a body of theirs -> one of /v1/chat/completions, and that endpoint's
answers, whole or in chunks, -> theirs. Earlier responses are remembered, as many as there is room for.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping

from vkprefill.server.api_error import ApiError, bad_request
from vkprefill.server.engine.jobs import Done
from vkprefill.server.protocol.kinds import (
    Boolean,
    Choice,
    Either,
    Items,
    Json,
    Neutral,
    Noted,
    Number,
    Record,
    Text,
    Whole,
    check,
)
from vkprefill.server.protocol.tables import EFFORTS, MAX_TOKENS

MAX_REMEMBERED = 1000
MAX_CHARACTERS = 2**25  # of the conversations that are remembered
TEXT_PART = Record({"type": Choice(("input_text", "output_text", "text")), "text": Text()}, ("type", "text"))
ITEM = Record(
    {
        "type": Choice(("message", "function_call", "function_call_output", "reasoning")),
        "role": Choice(("system", "developer", "user", "assistant")),
        "content": Either((Text(), Items(Record())), "text or a list of parts"),
        "name": Text(1),
        "call_id": Text(),
        "arguments": Text(),
        "output": Either((Text(), Items(TEXT_PART)), "text or a list of text parts"),
    }
)
TOOL = Record(
    {
        "type": Choice(("function",)),
        "name": Text(1),
        "description": Text(),
        "parameters": Record(),
        "strict": Boolean(),
    },
    ("type", "name"),
)
FORMAT = Record({"type": Choice(("text", "json_object", "json_schema")), "name": Text(), "schema": Record()}, ("type",))
NAMED_TOOL = Record({"type": Choice(("function",)), "name": Text(1)}, ("type", "name"))
RESPONSES = Record(
    {
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
        "tool_choice": Either((Choice(("auto", "none", "required")), NAMED_TOOL), "auto, none, required or a function"),
        "parallel_tool_calls": Boolean(),
        "text": Record({"format": FORMAT, "verbosity": Neutral(("medium",))}),
        "reasoning": Record({"effort": Choice(EFFORTS)}),
        "background": Neutral((False,)),
        "truncation": Neutral(("disabled",)),
        "conversation": Neutral(()),
        "prompt": Neutral(()),
        "max_tool_calls": Noted("of tools that run at the service, of which there are none", Whole(1)),
    },
    ("input",),
)
PASSED = ("model", "stream", "temperature", "top_p", "parallel_tool_calls", "specprefill", "seed")
ECHOED = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": True,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "truncation": "disabled",
}


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
    messages = [*before, *_messages(asked["input"])]
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
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _messages(given: str | list[Json]) -> list[Json]:
    """Items that belong to one answer, its reasoning, text and calls, become one message."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[Json] = []
    for index, item in enumerate(given):
        where, kind = f"input[{index}]", item.get("type", "message")
        if kind == "function_call_output":
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
    if kind == "function_call":
        function = {"name": _wanted(item, "name", where), "arguments": item.get("arguments", "{}")}
        call = {"id": item.get("call_id", ""), "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(call)
    elif kind == "reasoning":
        content = item.get("content") or []
        texts = [part["text"] for part in content if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
        if texts:
            message["reasoning_content"] = message.get("reasoning_content", "") + "".join(texts)
    else:
        message["content"] += _joined(_wanted(item, "content", where), f"{where}.content")


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


class ResponsesAnswer:
    """One answer: of a whole chat completion, or of its chunks in order."""

    def __init__(
        self,
        model: str,
        asked: Json,
        messages: list[Json],
        remembered: Remembered,
        count: Callable[[str], int],
    ) -> None:
        """messages: the conversation that it answers; asked: the request's checked fields; count: tokens of a text."""
        self._count = count
        self._messages, self._remembered, self._keeps = messages, remembered, asked.get("store", True)
        self._response: Json = {
            "id": f"resp_{secrets.token_hex(12)}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
            **{name: asked.get(name, default) for name, default in ECHOED.items()},
        }
        self._open: Json | None = None  # the item that is being written
        self._number = -1  # of the event

    def whole(self, chat: Json, done: Done) -> Json:
        message = chat["choices"][0]["message"]
        output = self._response["output"]
        if reasoning := message.get("reasoning_content"):
            output.append(_filled(_item("reasoning"), reasoning))
        if message["content"]:
            output.append(_filled(_item("message"), message["content"]))
        output += [_call(call) for call in message.get("tool_calls") or []]
        return self._ended(chat, done)

    def begin(self) -> Iterator[Json]:
        yield self._event("response.created", response=self._response)
        yield self._event("response.in_progress", response=self._response)

    def chunk(self, chunk: Json) -> Iterator[Json]:
        """The events that a chunk of a chat completion makes."""
        if "revised_from" in chunk:
            yield self._event("revision", **{name: chunk[name] for name in ("revised_from", "text")})
        for choice in chunk["choices"]:
            delta = choice["delta"]
            for kind, name in (("reasoning", "reasoning_content"), ("message", "content")):
                if text := delta.get(name):
                    yield from self._write(kind, text)
            for call in delta.get("tool_calls") or []:
                yield from self._close()
                yield from self._whole_call(_call(call))

    def end(self, last: Json, done: Done) -> Iterator[Json]:
        """last: the chunk with the usage."""
        yield from self._close()
        response = self._ended(last, done)
        yield self._event(f"response.{response['status']}", response=response)

    def _ended(self, chat: Json, done: Done) -> Json:
        cut = done.finish_reason == "length"
        more = {name: chat[name] for name in ("timings", "specprefill")}
        self._response |= {"status": "incomplete" if cut else "completed", "usage": self._usage(chat["usage"]), **more}
        if cut:
            self._response["incomplete_details"] = {"reason": "max_output_tokens"}
            if self._response["output"]:
                self._response["output"][-1]["status"] = "incomplete"
        if self._keeps:
            said = _messages(self._response["output"]) if self._response["output"] else []
            self._remembered.keep(self._response["id"], [*self._messages, *said])
        return self._response

    def _usage(self, usage: Json) -> Json:
        thoughts = [item["content"][0]["text"] for item in self._response["output"] if item["type"] == "reasoning"]
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": sum(map(self._count, thoughts))},
            "total_tokens": usage["total_tokens"],
        }

    def _event(self, kind: str, **fields: object) -> Json:
        self._number += 1
        return {"type": kind, "sequence_number": self._number, **fields}

    def _of_item(self, kind: str, **fields: object) -> Json:
        place = {"item_id": self._open["id"], "output_index": len(self._response["output"])}
        return self._event(kind, **place, **fields)

    def _write(self, kind: str, text: str) -> Iterator[Json]:
        if self._open is None or self._open["type"] != kind:
            yield from self._close()
            self._open = _item(kind)
            index = len(self._response["output"])
            yield self._event("response.output_item.added", output_index=index, item={**self._open, "content": []})
            yield self._of_item("response.content_part.added", content_index=0, part={**self._open["content"][0]})
        self._open["content"][0]["text"] += text
        more = {"logprobs": []} if kind == "message" else {}
        yield self._of_item(f"{_texts(kind)}.delta", content_index=0, delta=text, **more)

    def _close(self) -> Iterator[Json]:
        item = self._open
        if item is None:
            return
        part = item["content"][0]
        more = {"logprobs": []} if item["type"] == "message" else {}
        yield self._of_item(f"{_texts(item['type'])}.done", content_index=0, text=part["text"], **more)
        yield self._of_item("response.content_part.done", content_index=0, part=part)
        yield from self._done(item)

    def _whole_call(self, call: Json) -> Iterator[Json]:
        self._open = call
        index = len(self._response["output"])
        begun = {**call, "arguments": "", "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=index, item=begun)
        yield self._of_item("response.function_call_arguments.delta", delta=call["arguments"])
        yield self._of_item("response.function_call_arguments.done", arguments=call["arguments"], name=call["name"])
        yield from self._done(call)

    def _done(self, item: Json) -> Iterator[Json]:
        self._open = None
        item["status"] = "completed"
        yield self._event("response.output_item.done", output_index=len(self._response["output"]), item=item)
        self._response["output"].append(item)


def _texts(kind: str) -> str:
    return "response.reasoning_text" if kind == "reasoning" else "response.output_text"


def _item(kind: str) -> Json:
    """An empty one, whose content has one part."""
    if kind == "reasoning":
        part, more = {"type": "reasoning_text", "text": ""}, {"summary": []}
        return {"id": f"rs_{secrets.token_hex(12)}", "type": kind, "status": "in_progress", "content": [part], **more}
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    name = f"msg_{secrets.token_hex(12)}"
    return {"id": name, "type": kind, "status": "in_progress", "role": "assistant", "content": [part]}


def _filled(item: Json, text: str) -> Json:
    item["content"][0]["text"], item["status"] = text, "completed"
    return item


def _call(call: Json) -> Json:
    function = call["function"]
    names = {"id": f"fc_{secrets.token_hex(12)}", "call_id": call["id"]}
    return {**names, "type": "function_call", "status": "completed", **function}


def error_event(error: ApiError) -> Json:
    """In a stream; else it is as everywhere."""
    body = error.body()
    return {"type": "error", "code": error.code, "message": error.message, "param": error.param, **body}
