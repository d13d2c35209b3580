"""Random JSON schemas whose texts and lists are bounded, the same for a seed, and what an answer by one must be."""

import json
import random
import re
from functools import partial

import jsonschema_rs  # comes with schemathesis

from vkprefill.errors import RequestError
from vkprefill.grammar.grammars import Grammar, of_schema

Schema = dict[str, object]
NAMES = ("a", "b", "name", "two words", "a-b", "größe", 'in "quotes"', "back\\slash", "$id", "", "properties", "type")
TEXTS = ("", "red", "green", "größe", 'a "b"', "\\", "a/b", "🙂", "null", "12")
PATTERNS = (
    "^[a-c]{1,4}$",
    "^(yes|no)$",
    "^[0-9]{2}:[0-9]{2}$",
    "^\\S{0,5}$",
    "^[A-Z][a-z]{0,3}( [A-Z])?$",
    "^é?\\d{1,3}$",
)
FORMATS = ("date", "time", "date-time", "ipv4", "uuid", "email")
DEEPEST = 3


def random_schema(seed: int) -> tuple[Schema, Grammar]:
    """One that can be followed, and its grammar; those that llguidance refuses by name are passed over."""
    draw = random.Random(seed)
    while True:
        schema = _any(draw, 0)
        if draw.random() < 0.1:  # what may hold itself
            node = {"type": "object", "properties": {"value": schema, "next": {"$ref": "#/$defs/node"}}}
            schema = {"$defs": {"node": {**node, "required": ["value"]}}, "$ref": "#/$defs/node"}
        try:
            return schema, of_schema(schema)
        except RequestError:
            continue


def valid(schema: Schema, text: str) -> bool:
    """Whether a text is compact JSON by a schema, for another library than the one that makes grammars. Of a name that
    comes twice, as those may that the schema leaves open, both values have to be.
    """
    compact = not re.search(r"\s", re.sub(r'"(\\.|[^"\\])*"', "", text))
    validator = jsonschema_rs.Draft202012Validator(schema, validate_formats=True)
    return compact and all(
        validator.is_valid(json.loads(text, object_pairs_hook=lambda pairs, step=step: dict(pairs[::step])))
        for step in (1, -1)
    )


def _any(draw: random.Random, depth: int) -> Schema:
    leaves = [_text, _text, _whole, _number, _choice, _const, lambda _: {"type": "boolean"}, lambda _: {"type": "null"}]
    inner = [partial(one, depth=depth + 1) for one in (_record, _record, _record, _list, _list, _tuple, _either, _both)]
    return draw.choice(inner if depth == 0 else leaves if depth == DEEPEST else [*inner, *leaves])(draw)


def _text(draw: random.Random) -> Schema:
    match draw.randrange(4):
        case 0:
            return {"type": "string", "pattern": draw.choice(PATTERNS)}
        case 1:
            return {"type": "string", "format": draw.choice(FORMATS), "maxLength": 40}
        case _:
            least = draw.choice((0, 0, 1, 3))
            return {"type": "string", "minLength": least, "maxLength": least + draw.randrange(8)}


def _whole(draw: random.Random) -> Schema:
    least = draw.randrange(-1000, 1000)
    bounds = {"minimum": least, "maximum": least + draw.randrange(500)}
    if draw.random() < 0.3:
        bounds = {"exclusiveMinimum": least, "exclusiveMaximum": least + 2 + draw.randrange(50)}
    return {"type": "integer", **bounds, **({"multipleOf": draw.choice((1, 2, 5))} if draw.random() < 0.2 else {})}


def _number(draw: random.Random) -> Schema:
    least = draw.randrange(-40, 40) / 4
    steps = {"multipleOf": draw.choice((0.5, 0.25))} if draw.random() < 0.7 else {}  # else its digits may go on
    return {"type": "number", "minimum": least, "maximum": least + draw.randrange(1, 20), **steps}


def _choice(draw: random.Random) -> Schema:
    return {"enum": draw.sample((*TEXTS, 1, -2.5, True, None, [1, "x"], {"k": []}), draw.randrange(1, 5))}


def _const(draw: random.Random) -> Schema:
    return {"const": draw.choice((*TEXTS, 0, False, {"a": [1, {"b": None}]}))}


def _record(draw: random.Random, depth: int) -> Schema:
    names = draw.sample(NAMES, draw.randrange(1, 5))
    schema: Schema = {"type": "object", "properties": {name: _any(draw, depth) for name in names}}
    schema["required"] = [name for name in names if draw.random() < 0.7]
    match draw.randrange(12):
        case 0 | 1:
            schema["additionalProperties"] = False
        case 2 | 3:
            schema |= {"patternProperties": {"^x[0-9]$": _any(draw, DEEPEST)}, "additionalProperties": False}
        case 4:
            schema["additionalProperties"] = _any(draw, DEEPEST)  # of names that may go on
        case 5 if len(schema["required"]) == len(names):
            schema["minProperties"] = 1
    return schema


def _list(draw: random.Random, depth: int) -> Schema:
    least = draw.randrange(3)
    return {"type": "array", "items": _any(draw, depth), "minItems": least, "maxItems": least + draw.randrange(3)}


def _tuple(draw: random.Random, depth: int) -> Schema:
    parts = [_any(draw, depth) for _ in range(draw.randrange(1, 4))]
    return {"type": "array", "prefixItems": parts, "items": False, "minItems": draw.randrange(len(parts) + 1)}


def _either(draw: random.Random, depth: int) -> Schema:
    return {draw.choice(("anyOf", "oneOf")): [_any(draw, depth) for _ in range(draw.randrange(1, 4))]}


def _both(draw: random.Random, depth: int) -> Schema:
    return {"allOf": [_record(draw, depth), _record(draw, depth)]}
