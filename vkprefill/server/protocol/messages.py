"""Brings the checked messages of a chat request into the form that chat templates read."""

from __future__ import annotations

from vkprefill.text.strict_json import loads

Message = dict[str, object]

WHOLE_TEXT = "arguments"  # the name under which arguments that are no object are kept


def for_template(messages: list[Message]) -> list[Message]:
    """Copies with text as content, objects as the arguments of tool calls, and "system" for "developer"."""
    return [_message(message) for message in messages]


def _message(message: Message) -> Message:
    content = message.get("content", "")
    texts = [content] if isinstance(content, str) else [part["text"] for part in content]
    role = "system" if message["role"] == "developer" else message["role"]
    done = {**message, "role": role, "content": "".join(texts)}
    if "tool_calls" in message:
        done["tool_calls"] = [_tool_call(call) for call in message["tool_calls"]]
    return done


def _tool_call(call: Message) -> Message:
    function = call["function"]
    return {**call, "function": {**function, "arguments": _arguments(function.get("arguments", {}))}}


def _arguments(arguments: str | Message) -> Message:
    """The object that the text is. Text that is no JSON object, as models write it at times, is kept as it stands, as
    one argument: the conversation goes on, and the model sees what it wrote."""
    if not isinstance(arguments, str):
        return arguments
    try:
        found = loads(arguments or "{}")
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {WHOLE_TEXT: arguments}


def joined_systems(messages: list[Message]) -> list[Message] | None:
    """All system messages as one at the beginning, in their order; None where there is nothing to join or to move.

    For templates that refuse a second or late one.
    """
    systems = [message for message in messages if message["role"] == "system"]
    if not systems or systems == messages[:1]:
        return None
    others = [message for message in messages if message["role"] != "system"]
    text = "\n\n".join(text for message in systems if (text := message["content"]))
    return [{**systems[0], "content": text}, *others]
