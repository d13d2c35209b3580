"""Qwen3.5's tool calls in the text of an answer -> the calls of OpenAI's API.

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>

Values are written as they are: whether `5` is a number or a text is for the tool's schema to say.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION = re.compile(r"\s*<function=([^>\n]+)>(.*?)(?:</function>\s*)?\Z", re.DOTALL)
# A value may hold the text </parameter>: only one that another parameter or the end follows ends it.
PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>\s*(?=<parameter=|\Z)", re.DOTALL)


@dataclass(frozen=True)
class ToolCall:
    """arguments: by name, JSON values."""

    name: str
    arguments: dict[str, object]

    def as_dict(self) -> dict[str, object]:
        """As OpenAI has it, with an id of its own."""
        arguments = json.dumps(self.arguments, ensure_ascii=False)
        return {
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": self.name, "arguments": arguments},
        }


def parse_tool_call(text: str, tools: Sequence[Mapping[str, object]]) -> ToolCall | None:
    """What stands between <tool_call> and </tool_call>; None if it is no call."""
    found = FUNCTION.match(text)
    if found is None:
        return None
    name, body = found[1].strip(), found[2].strip()
    parameters = list(PARAMETER.finditer(body))
    if PARAMETER.sub("", body).strip():
        return None
    schema = _parameters_of(name, tools)
    return ToolCall(name, {p[1].strip(): _value(p[2], schema.get(p[1].strip())) for p in parameters})


def _parameters_of(name: str, tools: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
    for tool in tools:
        function = tool["function"]
        if function["name"] == name:
            properties = (function.get("parameters") or {}).get("properties")
            return properties if isinstance(properties, Mapping) else {}
    return {}


def _value(text: str, schema: object) -> object:
    """JSON where the schema asks for anything but text and the text is JSON; else the text."""
    kind = schema.get("type") if isinstance(schema, Mapping) else "string"
    if kind == "string":
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {"True": True, "False": False, "None": None}.get(text.strip(), text)
    return text if isinstance(kind, list) and "string" in kind and isinstance(value, str) else value
