"""Tool calls as a grammar, in the form that `text/tool_calls.py` reads. A text parameter is text as it stands, any
other one JSON by its schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from vkprefill.display import printable
from vkprefill.errors import RequestError
from vkprefill.grammar.grammars import ANY_TEXT, Grammar, of_lark, of_schema
from vkprefill.text.tool_calls import CLOSE_FUNCTION, CLOSE_PARAMETER, FUNCTION, PARAMETER, kinds_of, resolved

Schema = Mapping[str, object]
SLASH = re.compile(r"(\\.)|[/\n]", re.DOTALL)  # what would end a regular expression in Lark, unless it is escaped
VALUE_END = f"\n{CLOSE_PARAMETER}\n"
BEYOND = ("format", "contentEncoding", "contentMediaType")  # of texts, that only a JSON grammar follows


def of_calls(
    tools: Sequence[Mapping[str, object]], *, required: bool, parallel: bool = True, instead: object = None
) -> Grammar:
    """Calls of these tools; required: at least one, and nothing else; if not, any text with such calls in it;
    parallel: several of them; instead: a schema of the JSON that any answer without a call is. Raises RequestError for
    a tool that cannot be called so.
    """
    lines: list[str] = []
    names = [_tool(number, tool, lines) for number, tool in enumerate(tools)]
    body = f'"\\n" ({" | ".join(names)}) close_call'
    if required or instead is not None:
        start = f"open_call {body}" + (f' ("\\n" open_call {body})*' if parallel else "")
        if instead is not None:
            start += f" | %json {of_schema(instead, 'response_format').text}"
    elif parallel:
        start = f"(begins_call {body})* {ANY_TEXT}"
    else:
        start = f"{ANY_TEXT} | begins_call {body}"
    return of_lark("\n".join([f"start: {start}", *lines]), "tools")


def _tool(number: int, tool: Mapping[str, object], lines: list[str]) -> str:
    """Adds the rules of a tool; the name of its first."""
    function = tool["function"]
    root = _mapping(function.get("parameters"))
    where, name = f"tools[{number}].function", function["name"]
    if ">" in name or "\n" in name:
        raise RequestError(f"{where}.name: a call of it cannot be written, wanted a name without > and line ends")
    required, rules, properties = root.get("required") or [], [], _mapping(root.get("properties"))
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise RequestError(f"{where}.parameters.required: wanted a list of names")
    for index, (key, schema) in enumerate(properties.items()):
        if ">" in key or "\n" in key:
            raise RequestError(f"{where}.parameters: a name of a parameter has > or a line end in it")
        rule = f"p{number}_{index}"
        value = _value(f"v{number}_{index}", schema, root, f"{where}.parameters.properties.{key}", lines)
        lines.append(f"{rule}: {_quoted(f'{PARAMETER}{key}>' + chr(10))} {value}")
        rules.append(rule if key in required else f"{rule}?")
    if missing := [key for key in required if key not in properties]:
        raise RequestError(f"{where}.parameters.required: there is no property {missing[0]!r}")
    start, end = _quoted(f"{FUNCTION}{name}>\n"), _quoted(f"{CLOSE_FUNCTION}\n")
    lines.append(f"f{number}: {start} {' '.join(rules)} {end}")
    return f"f{number}"


def _value(rule: str, schema: object, root: Schema, where: str, lines: list[str]) -> str:
    """A value with what ends it."""
    found = resolved(schema, root)
    if not isinstance(found, Mapping):  # true and a reference to nothing too: what would be text is not said
        raise RequestError(f"{where}: found {printable(found)}, wanted a JSON schema, which is an object")
    if "string" not in kinds_of(schema, root):
        definitions = {name: root[name] for name in ("$defs", "definitions") if name in root}
        return f"%json {of_schema({**definitions, **found}, where).text} {_quoted(VALUE_END)}"
    choices = [found["const"]] if "const" in found else found.get("enum")
    if isinstance(choices, list):
        texts = (one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in choices)
        return f"({' | '.join(_quoted(text + VALUE_END) for text in texts)})"
    if beyond := [name for name in BEYOND if name in found]:
        raise RequestError(f"{where}.{beyond[0]}: cannot be followed in a text parameter; wanted pattern or enum")
    lines.append(f"{rule}[suffix={_quoted(VALUE_END)}]: {_text(found)}")
    return rule


def _text(schema: Schema) -> str:
    """The regular expression of a text of this schema."""
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        before = "" if pattern.startswith("^") else r"(.|\n)*"
        after = "" if pattern.endswith("$") and not pattern.endswith("\\$") else r"(.|\n)*"
        inner = pattern.removeprefix("^") if not before else pattern
        inner = inner.removesuffix("$") if not after else inner
        return f"/{before}({SLASH.sub(_escaped, inner)}){after}/"
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    return ANY_TEXT if not least and most == "" else rf"/(.|\n){{{least},{most}}}/"


def _escaped(match: re.Match[str]) -> str:
    return match[1] or {"/": "\\/", "\n": "\\n"}[match[0]]


def _mapping(value: object) -> Schema:
    return value if isinstance(value, Mapping) else {}


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
