"""Qwen3.5's tool calls in the text of an answer -> the calls of OpenAI's API.

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>

Values are written as they are: whether `5` is a number or a text is for the tool's schema to say. A value may hold any
of the tags: only a </parameter> that another parameter or the end of the call follows ends it.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from vkprefill.text.strict_json import loads

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, CLOSE_FUNCTION = "<function=", "</function>"
PARAMETER, CLOSE_PARAMETER = "<parameter=", "</parameter>"
TEXT = frozenset(["string"])
TYPES = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
    "array": list,
    "object": dict,
}
MOST_STEPS = 16  # of references, and of kinds inside of kinds
LONGEST = max(map(len, (CLOSE, FUNCTION, CLOSE_FUNCTION, PARAMETER)))
BLANK, WORD = re.compile(r"\s*"), re.compile(r"[^>\n]*")


@dataclass(frozen=True)
class ToolCall:
    """arguments: by name, JSON values."""

    name: str
    arguments: dict[str, object]

    def as_dict(self) -> dict[str, object]:
        """As OpenAI has it, with an id of its own."""
        arguments = json.dumps(self.arguments, ensure_ascii=False, allow_nan=False)
        return {
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": self.name, "arguments": arguments},
        }


class CallReader:
    """Reads one call, from behind its <tool_call>, in pieces; the work is linear in the text, and for a piece in the
    piece, so that it may run where others wait.

    Feed it with push until `done`; `finish` ends the text. Then `call` is the call, or None where the text is none;
    `rest` is what stands behind a call, or the part of other text that was not read; `taken` is what was read of it.
    """

    def __init__(self, tools: Sequence[Mapping[str, object]]) -> None:
        self._tools = tools
        self._step: Callable[[], bool] = self._before_function
        self._text = ""
        self._at = 0  # what stands before it in the text was read
        self._taken: list[str] = []
        self._name = ""
        self._key: str | None = None
        self._word: list[str] = []  # of the name, key or value that is being read
        self._value_end = 0  # pieces of the value without the </parameter> that may end it
        self._values: dict[str, str] = {}
        self.call: ToolCall | None = None
        self.done = False

    @property
    def taken(self) -> str:
        return "".join(self._taken)

    @property
    def rest(self) -> str:
        return self._text[self._at :]

    def push(self, text: str) -> None:
        self._text, self._at = self.rest + text, 0
        while not self.done and self._step():
            pass

    def finish(self) -> None:
        """The text ends here: complete but for closing tags, it is a call too."""
        if self.done:
            return
        if self.rest or self._step not in (self._after_value, self._after_close, self._between, self._at_end):
            self._fail()
            return
        if self._key is not None:
            self._end_value()
        self._end()

    # Each step reads what it can from the start of the text, and says whether the next one can go on at once.

    def _before_function(self) -> bool:
        return self._next({FUNCTION: self._function_name}, self._fail)

    def _function_name(self) -> bool:
        return self._read_word(self._between)

    def _between(self) -> bool:
        if self._word:
            self._name, self._word = "".join(self._word).strip(), []
        tags = {PARAMETER: self._parameter_name, CLOSE_FUNCTION: self._at_end, CLOSE: self._end}
        return self._next(tags, self._fail)

    def _parameter_name(self) -> bool:
        return self._read_word(self._value)

    def _value(self) -> bool:
        """Up to the next </parameter>."""
        if self._key is None:
            self._key, self._word = "".join(self._word).strip(), []
        end = self._text.find(CLOSE_PARAMETER, self._at)
        if end < 0:
            self._take(max(self._at, len(self._text) - len(CLOSE_PARAMETER) + 1), self._word)
            return False
        self._take(end, self._word)
        self._value_end = len(self._word)
        self._take(end + len(CLOSE_PARAMETER), self._word)
        self._step = self._after_value
        return True

    def _after_value(self) -> bool:
        tags = {PARAMETER: self._parameter_name, CLOSE_FUNCTION: self._after_close, CLOSE: self._end}
        return self._next(tags, self._go_on, self._word)

    def _after_close(self) -> bool:
        """Behind </function>, which may be the value's own."""
        return self._next({CLOSE: self._end}, self._go_on, self._word)

    def _at_end(self) -> bool:
        return self._next({CLOSE: self._end}, self._fail)

    # What they share

    def _next(
        self, tags: Mapping[str, Callable[[], bool]], otherwise: Callable[[], bool], into: list[str] | None = None
    ) -> bool:
        """White space and one of the tags, which name the next step. into: where what is read may belong as well."""
        self._take(BLANK.match(self._text, self._at).end(), into)
        for tag, step in tags.items():
            if self._text.startswith(tag, self._at):
                if into is not None and tag != CLOSE_FUNCTION:
                    self._end_value()
                    into = None
                self._take(self._at + len(tag), into)
                if step == self._end:
                    return self._end()
                self._step = step
                return True
        start = self._text[self._at : self._at + LONGEST]
        return False if any(tag.startswith(start) for tag in tags) else otherwise()

    def _read_word(self, step: Callable[[], bool]) -> bool:
        """A name up to its `>`, on one line."""
        self._take(WORD.match(self._text, self._at).end(), self._word)
        if self._at == len(self._text):
            return False
        if self._text[self._at] == "\n" or not "".join(self._word).strip():
            return self._fail()
        self._take(self._at + 1)
        self._step = step
        return True

    def _take(self, end: int, into: list[str] | None = None) -> None:
        """The text up to `end` is read."""
        if end > self._at:
            piece, self._at = self._text[self._at : end], end
            self._taken.append(piece)
            if into is not None:
                into.append(piece)

    def _go_on(self) -> bool:
        self._step = self._value
        return True

    def _end_value(self) -> None:
        text = "".join(self._word[: self._value_end])
        self._values[self._key] = text.removeprefix("\n").removesuffix("\n")
        self._key, self._word = None, []

    def _end(self) -> bool:
        root = _parameters_of(self._name, self._tools)
        properties = root.get("properties")
        schemas = properties if isinstance(properties, Mapping) else {}
        kinds = {key: kinds_of(schemas[key], root) if key in schemas else TEXT for key in self._values}
        self.call = ToolCall(self._name, {key: _value(text, kinds[key]) for key, text in self._values.items()})
        self.done = True
        return False

    def _fail(self) -> bool:
        self.done = True
        return False


def parse_tool_call(text: str, tools: Sequence[Mapping[str, object]]) -> ToolCall | None:
    """What stands between <tool_call> and </tool_call>; None if it is no call."""
    reader = CallReader(tools)
    reader.push(text)
    reader.finish()
    return reader.call


def _parameters_of(name: str, tools: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
    for tool in tools:
        function = tool["function"]
        if function["name"] == name:
            return function.get("parameters") or {}
    return {}


def resolved(schema: object, root: Mapping[str, object]) -> object:
    """What a schema refers to inside of `root`, if it refers to anything there."""
    for _ in range(MOST_STEPS):
        if not isinstance(schema, Mapping) or not str(schema.get("$ref", "")).startswith("#/"):
            return schema
        found: object = root
        for step in str(schema["$ref"])[2:].split("/"):
            step = step.replace("~1", "/").replace("~0", "~")
            found = found.get(step) if isinstance(found, Mapping) else None
        schema = found
    return schema


def kinds_of(schema: object, root: Mapping[str, object], depth: int = 0) -> frozenset[str]:
    """The JSON types that a schema names, inside of `root`; none where it says nothing of them."""
    schema = resolved(schema, root)
    if not isinstance(schema, Mapping):
        return TEXT
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset([kind])
    if isinstance(kind, list):
        return frozenset(one for one in kind if isinstance(one, str))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list):
        return frozenset(name for name in TYPES if any(_is_a(name, value) for value in values))
    kinds: frozenset[str] = frozenset()
    for name in ("anyOf", "oneOf", "allOf"):
        parts = schema.get(name)
        for part in parts if isinstance(parts, list) and depth < MOST_STEPS else ():
            if isinstance(part, Mapping):
                kinds |= kinds_of(part, root, depth + 1)
    return kinds


def _is_a(name: str, value: object) -> bool:
    """Whether a JSON value is of a type. 5.0 is an integer too."""
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer":
        return isinstance(value, int) or isinstance(value, float) and value.is_integer()
    return isinstance(value, TYPES.get(name, ()))


def _value(text: str, kinds: frozenset[str]) -> object:
    """JSON where the schema asks for anything but text and the text is JSON of what it asks for; else the text."""
    if kinds == TEXT:
        return text
    try:
        value = loads(text)
        json.dumps(value, ensure_ascii=False).encode()  # lone surrogates from escapes cannot be sent
    except (ValueError, RecursionError):
        return {"True": True, "False": False, "None": None}.get(text.strip(), text)
    may_be = any(_is_a(name, value) for name in kinds - TEXT)
    return text if "string" in kinds and not may_be else value
