"""Answers of /v1/chat/completions, whole or in chunks, -> those of OpenAI's Responses API."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator

from vkprefill.server.api_error import ApiError
from vkprefill.server.engine.jobs import Done
from vkprefill.server.protocol.answers import calls_of, ours_of
from vkprefill.server.protocol.kinds import Json
from vkprefill.server.protocol.responses import CUSTOM, CUSTOM_CALL, FUNCTION_CALL, INPUT, Remembered, messages_of

INPUT_OF = {  # by kind of a call: where its input stands, and how events of it begin
    FUNCTION_CALL: ("arguments", "function_call_arguments"),
    CUSTOM_CALL: (INPUT, "custom_tool_call_input"),
}
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
        self._custom = {tool["name"] for tool in asked.get("tools", ()) if tool["type"] == CUSTOM}
        self._open: Json | None = None  # the item that is being written
        self._number = -1  # of the event

    def whole(self, chat: Json, done: Done) -> Json:
        message = chat["choices"][0]["message"]
        output = self._response["output"]
        if reasoning := message.get("reasoning_content"):
            output.append(_filled(_item("reasoning"), reasoning))
        if message["content"]:
            output.append(_filled(_item("message"), message["content"]))
        output += [self._call(call) for call in calls_of(message)]
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
            for call in calls_of(delta):
                yield from self._close()
                yield from self._whole_call(self._call(call))

    def end(self, last: Json, done: Done) -> Iterator[Json]:
        """last: the chunk with the usage."""
        yield from self._close()
        response = self._ended(last, done)
        yield self._event(f"response.{response['status']}", response=response)

    def _ended(self, chat: Json, done: Done) -> Json:
        cut = done.finish_reason == "length"
        self._response |= {"status": "incomplete" if cut else "completed", "usage": self._usage(chat["usage"])}
        self._response |= ours_of(chat)
        if cut:
            self._response["incomplete_details"] = {"reason": "max_output_tokens"}
            if self._response["output"]:
                self._response["output"][-1]["status"] = "incomplete"
        if self._keeps:
            said = messages_of(self._response["output"]) if self._response["output"] else []
            self._remembered.keep(self._response["id"], [*self._messages, *said])
        return self._response

    def _usage(self, usage: Json) -> Json:
        thoughts = [item["content"][0]["text"] for item in self._response["output"] if item["type"] == "reasoning"]
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
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
        field, events = INPUT_OF[call["type"]]
        yield self._event(
            "response.output_item.added", output_index=index, item={**call, field: "", "status": "in_progress"}
        )
        yield self._of_item(f"response.{events}.delta", delta=call[field])
        yield self._of_item(f"response.{events}.done", name=call["name"], **{field: call[field]})
        yield from self._done(call)

    def _call(self, call: Json) -> Json:
        function = call["function"]
        item = {"id": f"fc_{secrets.token_hex(12)}", "call_id": call["id"], "status": "completed"}
        if function["name"] not in self._custom:
            return {**item, "type": FUNCTION_CALL, **function}
        return {**item, "type": CUSTOM_CALL, "name": function["name"], INPUT: _input_of(function["arguments"])}

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


def _input_of(arguments: str) -> str:
    """The text that a custom tool is given; the arguments as they stand where the model gave it others."""
    given = json.loads(arguments)
    text = given.get(INPUT)
    return text if list(given) == [INPUT] and isinstance(text, str) else arguments


def error_event(error: ApiError) -> Json:
    """In a stream; else it is as everywhere."""
    body = error.body()
    return {"type": "error", "code": error.code, "message": error.message, "param": error.param, **body}
