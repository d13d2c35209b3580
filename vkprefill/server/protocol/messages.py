"""Messages and tools of a chat request, checked and brought into the form that chat templates read."""

from __future__ import annotations

import json

from vkprefill.server.api_error import ApiError, bad_request
from vkprefill.server.protocol.fields import kind_of, shown

ROLES = ("system", "developer", "user", "assistant", "tool")


def check_messages(messages: list[object]) -> list[dict[str, object]]:
    """Copies with text as content and with objects as the arguments of tool calls. ApiError names the message that
    is wrong."""
    if not messages:
        raise bad_request("messages", "it is empty, wanted at least one message")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: object, where: str) -> dict[str, object]:
    if not isinstance(message, dict):
        raise _wrong(where, f"found {kind_of(message)}, wanted an object")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise _wrong(f"{where}.role", f"found {shown(role)}, wanted one of {', '.join(ROLES)}")
    checked = {**message, "role": "system" if role == "developer" else role}
    if message.get("content") is None and role != "assistant":
        raise _wrong(f"{where}.content", "missing, wanted text")
    checked["content"] = _content(message.get("content"), f"{where}.content")
    for name in ("reasoning_content", "name", "tool_call_id"):
        if not isinstance(message.get(name), str | None):
            raise _wrong(f"{where}.{name}", f"found {shown(message[name])}, wanted text")
    calls = message.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list):
            raise _wrong(f"{where}.tool_calls", f"found {shown(calls)}, wanted a list")
        checked["tool_calls"] = [_tool_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(calls)]
    return checked


def _content(content: object, where: str) -> str:
    """Text, or the texts of a list of parts, joined."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _wrong(where, f"found {shown(content)}, wanted text or a list of text parts")
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise _wrong(
                f"{where}[{index}]",
                f"found {shown(kind) if kind else shown(part)}, only parts of type text with a text are supported",
            )
        texts.append(part["text"])
    return "".join(texts)


def _tool_call(call: object, where: str) -> dict[str, object]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _wrong(where, "wanted an object with function.name and function.arguments")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            raise _wrong(f"{where}.function.arguments", "not JSON, wanted an object as JSON text") from None
    if not isinstance(arguments, dict | None):
        raise _wrong(f"{where}.function.arguments", f"found {kind_of(arguments)}, wanted an object as JSON text")
    return {**call, "function": {**function, "arguments": arguments or {}}}


def check_tools(tools: list[object] | None) -> list[dict[str, object]] | None:
    """The tools, None for an empty list."""
    for index, tool in enumerate(tools or []):
        where = f"tools[{index}]"
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"]:
            raise _wrong(where, 'wanted {"type": "function", "function": {"name": ..., "parameters": ...}}')
        if tool.get("type", "function") != "function":
            raise _wrong(f"{where}.type", f"found {shown(tool['type'])}, wanted function")
        if not isinstance(function.get("parameters"), dict | None):
            raise _wrong(f"{where}.function.parameters", f"found {shown(function['parameters'])}, wanted a JSON schema")
    return tools or None


def _wrong(where: str, message: str) -> ApiError:
    return ApiError(400, f"{where}: {message}", param=where)
