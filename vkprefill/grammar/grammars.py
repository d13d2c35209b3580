"""What an answer has to be, as a grammar: a JSON schema's, one in GBNF, or tool calls'. Plain data, which goes through
pipes; `matcher.py` follows it.

A grammar is llguidance's: a JSON schema as it is, or Lark's notation. JSON comes without white space between its parts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from vkprefill.display import printable
from vkprefill.errors import RequestError
from vkprefill.text.chat_template import CLOSE_THINKING
from vkprefill.text.strict_json import loads
from vkprefill.text.tool_calls import CLOSE, OPEN

SCHEMA, LARK = "json_schema", "lark_grammar"  # llguidance's names of the two kinds
MAX_CHARACTERS = 2**18  # of a grammar
LARK_HEAD = "%llguidance {}\n"
ANY_TEXT = r"/(.|\n)*/"
OTHERS = ("additionalProperties", "patternProperties", "unevaluatedProperties")  # what says something of them
COMBINERS = ("anyOf", "oneOf", "allOf", "$ref", "if", "dependentSchemas")
BY_NAME = ("properties", "patternProperties", "$defs", "definitions")
AS_THEY_ARE = ("const", "enum", "default", "examples", "required")
COMPACT = {"x-guidance": {"whitespace_flexible": False}}
LONGEST_ERROR = 300
DUMP = re.compile(r"\n\s*\d+ \| |<state>")  # before what llguidance shows with an error: the grammar, its own state
DEAD_END = "NoExtension"  # its name for a grammar by which nothing may come next
ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|[^uU])", re.DOTALL)  # of GBNF


@dataclass(frozen=True)
class Grammar:
    """kind: SCHEMA or LARK; text: of that kind. A Lark grammar may use OPEN_CALL, CLOSE_CALL and `begins_call`, text up
    to the first of them. what: its name in errors.
    """

    kind: str
    text: str
    what: str = "grammar"

    def whole(self, special: Mapping[str, int], thinking: bool) -> str:
        """For llguidance. special: texts of the vocabulary's special tokens, which tags are where they are among them;
        thinking: the answer begins inside of reasoning, which is free up to its end.
        """
        if self.kind == LARK:
            answer: dict[str, object] = {LARK: self.text + _tags(special)}
        else:
            answer = {SCHEMA: loads(self.text)}
        grammars = [{"name": "answer", **answer}]
        if thinking:
            thought = _up_to("thought", CLOSE_THINKING, special)
            grammars.insert(0, {"name": "all", LARK: f'{LARK_HEAD}start: thought "\\n\\n"? @answer\n{thought}'})
        return json.dumps({"grammars": grammars})


def of_schema(schema: object, what: str = "schema") -> Grammar:
    """JSON that a schema describes; objects whose properties are named have no others, unless the schema says so of
    them, as models would not know where to end. schema: an object, True, or its JSON text; what: its name in errors.
    Raises RequestError for what is no schema, or one that cannot be followed.
    """
    if isinstance(schema, str):
        try:
            schema = loads(schema)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{what}: not JSON: {error or 'nested too deeply'}") from None
    if schema is True:
        schema = {}
    if not isinstance(schema, Mapping):
        raise RequestError(f"{what}: found {printable(schema)}, wanted a JSON schema, which is an object")
    text = _as_text(schema, what)
    try:
        text = json.dumps({**_closed(loads(text)), **COMPACT})
    except RecursionError:
        raise RequestError(f"{what}: nested too deeply") from None
    return _checked(Grammar(SCHEMA, text, what))


def of_gbnf(text: str, what: str = "grammar") -> Grammar:
    """llama.cpp's notation. Raises RequestError for a grammar that cannot be read or followed."""
    if not isinstance(text, str) or not text.strip():
        raise RequestError(f"{what}: wanted a grammar in GBNF, with a rule named root")
    _bounded(text, what)
    llguidance(what)
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        lark = gbnf_to_lark(ESCAPED.sub(_unescaped, text))
    except Exception as error:  # the converter raises errors of no class of their own, IndexError too
        raise RequestError(f"{what}: not GBNF: {one_line(str(error)) or type(error).__name__}") from None
    return _checked(Grammar(LARK, lark, what))


def of_lark(text: str, what: str) -> Grammar:
    """Lark's notation, as llguidance reads it. Raises RequestError."""
    return _checked(Grammar(LARK, LARK_HEAD + text, what))


def llguidance(what: str) -> ModuleType:
    """The package, which is loaded when it is needed. RequestError where it is not there."""
    try:
        import llguidance
    except ImportError:
        raise RequestError(
            f"{what}: the package llguidance is not installed; pip install 'vkprefill[server]' has it"
        ) from None
    return llguidance


def one_line(error: str) -> str:
    """What llguidance says of an error, without the grammar's lines and the state that come after it."""
    line = " ".join(DUMP.split(error)[0].split())
    if line.startswith(DEAD_END):
        return "no text can come next, wanted rules that come to an end"
    return line if len(line) <= LONGEST_ERROR else line[: LONGEST_ERROR - 3] + "..."


def _checked(grammar: Grammar) -> Grammar:
    """The grammar, if it can be read, and an answer begun by it."""
    _bounded(grammar.text, grammar.what)
    library, whole = llguidance(grammar.what), grammar.whole({}, thinking=False)
    error = library.LLMatcher.validate_grammar(whole)
    if not error or error.startswith("WARNING"):
        first = library.LLMatcher(_bytes(), whole, log_level=0)
        first.compute_bitmask()
        error = first.get_error() if first.is_error() else ""
    if error:
        raise RequestError(f"{grammar.what}: {one_line(error)}")
    return grammar


@cache
def _bytes() -> object:
    """The vocabulary of the single bytes, for llguidance."""
    return llguidance("grammar").LLTokenizer("byte")


def _bounded(text: str, what: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise RequestError(f"{what}: found {len(text)} characters, wanted at most {MAX_CHARACTERS}")


def _as_text(schema: Mapping[str, object], what: str) -> str:
    try:
        text = json.dumps(schema, allow_nan=False)
        loads(text)
        return text
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"{what}: not JSON: {error or 'nested too deeply'}") from None


def _closed(schema: object) -> object:
    """The same without properties that are not named, but for schemas that are combined of several of one object."""
    return _without_others(schema) if not _combines(schema) else schema


def _combines(schema: object) -> bool:
    if isinstance(schema, list):
        return any(map(_combines, schema))
    if not isinstance(schema, dict):
        return False
    beside = "properties" in schema and any(name in schema for name in COMBINERS)
    return beside or len(schema.get("allOf") or ()) > 1 or any(map(_combines, schema.values()))


def _without_others(schema: object) -> object:
    if isinstance(schema, list):
        return [_without_others(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    done = {
        name: value if name in AS_THEY_ARE else _of_each(value) if name in BY_NAME else _without_others(value)
        for name, value in schema.items()
    }
    if isinstance(schema.get("properties"), dict) and not any(name in schema for name in OTHERS):
        done["additionalProperties"] = False
    return done


def _of_each(schemas: object) -> object:
    """Of schemas by names that are the user's."""
    if not isinstance(schemas, dict):
        return schemas
    return {name: _without_others(one) for name, one in schemas.items()}


def _tags(special: Mapping[str, int]) -> str:
    opened, closed = _tag(OPEN, special), _tag(CLOSE, special)
    return f"\nopen_call: {opened}\nclose_call: {closed}\n{_up_to('begins_call', OPEN, special)}"


def _tag(tag: str, special: Mapping[str, int]) -> str:
    """As one token or, where the vocabulary has none, as text."""
    return tag if tag in special else json.dumps(tag)


def _up_to(rule: str, tag: str, special: Mapping[str, int]) -> str:
    """A rule: any text up to and with the first such tag."""
    if tag in special:
        return f"{rule}: {ANY_TEXT} {tag}\n"
    return f"{rule}[suffix={json.dumps(tag)}]: {ANY_TEXT}\n"


def _unescaped(match: re.Match[str]) -> str:
    r"""\u and \U as the character, but for those that would end what they stand in."""
    digits = match[1] or match[2]
    if digits is None:
        return match[0]
    code = int(digits, 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise ValueError(f"{match[0]} is no character")
    return f"\\x{code:02x}" if code < 0x80 else chr(code)
