"""Grammars of answers: what is refused and how, and what the ones that are made let through."""

import json
import re

import jsonschema_rs  # comes with schemathesis
import numpy as np
import pytest
from gguf.constants import TokenType

from tests.model.conftest import BUILT_IN
from vkprefill.errors import RequestError
from vkprefill.gguf.file import open_gguf
from vkprefill.grammar.calls import of_calls
from vkprefill.grammar.grammars import Grammar, of_gbnf, of_schema
from vkprefill.grammar.matcher import Matcher
from vkprefill.text.tokenizer import Tokenizer
from vkprefill.text.tool_calls import parse_tool_call

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_metadata(open_gguf(BUILT_IN).metadata)


@pytest.fixture(scope="module")
def tagged():
    """The same with tokens for the tags, as Qwen3.5's vocabulary has them."""
    metadata = dict(open_gguf(BUILT_IN).metadata)
    tags = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
    kinds = [*map(int, metadata["tokenizer.ggml.token_type"]), *[int(TokenType.USER_DEFINED)] * len(tags)]
    metadata |= {
        "tokenizer.ggml.tokens": [*metadata["tokenizer.ggml.tokens"], *tags],
        "tokenizer.ggml.token_type": kinds,
    }
    return Tokenizer.from_metadata(metadata)


def allowed(row: np.ndarray, vocab_size: int) -> np.ndarray:
    """Ids of the bits."""
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")[:vocab_size])


def takes(tokenizer: Tokenizer, grammar: Grammar, text: str, *, thinking: bool = False) -> str:
    """Follows a text: "whole" (it may end there), "part", or the rest that is refused."""
    matcher = Matcher(tokenizer, grammar, thinking)
    ids = tokenizer.encode(text, special=True)
    for index, token_id in enumerate(ids):
        may, _ = matcher.rows([token_id])
        if not may:
            return tokenizer.decode(ids[index:])
        matcher.push(token_id)
    (row,) = matcher.rows([])[1]
    return "whole" if tokenizer.eog_token_ids <= set(allowed(row, tokenizer.vocab_size)) else "part"


def test_json_of_a_schema_is_compact_and_ends_where_it_is_whole(tokenizer):
    grammar = of_schema(PERSON)
    assert takes(tokenizer, grammar, '{"name":"Ann","age":42}') == "whole"
    assert takes(tokenizer, grammar, '{"name":"An') == "part"
    assert takes(tokenizer, grammar, '{"name": "Ann"}').startswith(" ")
    assert takes(tokenizer, grammar, '{"age":1') not in ("whole", "part")
    assert takes(tokenizer, of_schema(True), "[1,{}]") == "whole"
    assert of_schema(json.dumps(PERSON)) == grammar


def test_objects_have_no_properties_but_those_named(tokenizer):
    """Unless it is said, or objects are described by several schemas together."""
    named = {"type": "object", "properties": {"properties": {"type": "object", "properties": {"a": {}}}}}
    assert takes(tokenizer, of_schema(named), '{"properties":{"a":1}}') == "whole"
    assert takes(tokenizer, of_schema(named), '{"other":1}') not in ("whole", "part")
    assert takes(tokenizer, of_schema(named), '{"properties":{"b":1}}') not in ("whole", "part")
    assert takes(tokenizer, of_schema({**named, "additionalProperties": True}), '{"other":1}') == "whole"
    assert takes(tokenizer, of_schema({"const": {"properties": {}}}), '{"properties":{}}') == "whole"
    parts = [{"properties": {name: {"type": "null"}}, "required": [name]} for name in "ab"]
    assert takes(tokenizer, of_schema({"type": "object", "allOf": parts}), '{"a":null,"b":null}') == "whole"


def test_a_users_own_settings_of_the_library_do_not_count(tokenizer):
    loose = {**PERSON, "x-guidance": {"whitespace_flexible": True, "lenient": True}}
    assert of_schema(loose) == of_schema(PERSON)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "nope"}, "schema: Invalid type: nope"),
        ("{", "schema: not JSON: "),
        ("[1]", "schema: found"),
        (3, "schema: found 3, wanted a JSON schema"),
        ({"properties": {"a": {"$ref": "#/nope"}}}, "schema: Pointer '/nope' does not exist"),
        ({"type": "string", "pattern": "(?=x)"}, "schema: regex parse error: (?=x)"),
        ({"type": "array", "uniqueItems": True}, 'schema: Unimplemented keys: ["uniqueItems"]'),
        ({"$ref": "https://example.org/schema"}, "schema: Resource 'https://example.org/schema' is not present"),
        ({"enum": ["x" * 300_000]}, "schema: found 300"),
        ({"const": float("nan")}, "schema: not JSON"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, "schema: Unsatisfiable schema"),
    ],
)
def test_schemas_that_cannot_be_followed(schema, message):
    with pytest.raises(RequestError, match=f"^{re.escape(message)}") as refused:
        of_schema(schema)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 400


@pytest.mark.parametrize("depth", [150, 400, 900, 5000])
def test_a_schema_that_is_nested_without_end(depth):
    schema: dict = {}
    for _ in range(depth):
        schema = {"items": schema}
    with pytest.raises(RequestError, match="^schema: "):
        of_schema(schema)


@pytest.mark.parametrize(
    ("grammar", "whole", "refused"),
    [
        ('root ::= ("yes" | "no") [.!]*', "no!!", "nix"),
        ('root ::= item ("," item)*\nitem ::= [a-z]+ # a word\n', "ab,c", "ab;"),
        ('root ::= "\\u00e9\\x41" "\\\\" [^\\n"]{2,3}', "éA\\xyz", "éB"),
        ('root ::= a-rule\na-rule ::= "(" root? ")"', "(())", "()("),
    ],
)
def test_gbnf(tokenizer, grammar, whole, refused):
    assert takes(tokenizer, of_gbnf(grammar), whole) == "whole"
    assert takes(tokenizer, of_gbnf(grammar), refused) not in ("whole", "part")


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("", "grammar: wanted a grammar in GBNF"),
        (7, "grammar: wanted a grammar in GBNF"),
        ("root ::= nothing", "grammar: not GBNF: Rule 'nothing' not found"),
        ('other ::= "x"', "grammar: not GBNF: No 'root' rule found"),
        ('root ::= "x', "grammar: not GBNF: Unexpected end of input"),
        ("root ::= \\", "grammar: not GBNF: "),
        ('root ::= "\\ud800"', "grammar: not GBNF: \\ud800 is no character"),
        ("root ::= " + "(" * 5000, "grammar: not GBNF: "),
        ("x" * 300_000, "grammar: found 300000 characters"),
    ],
)
def test_gbnf_that_cannot_be_followed(grammar, message):
    with pytest.raises(RequestError, match=f"^{re.escape(message)}") as refused:
        of_gbnf(grammar)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("make", "form"),
    [
        (of_gbnf, "root ::= root root"),
        (of_gbnf, "root ::= a\na ::= b a\nb ::= a b"),
        (of_schema, {"$ref": "#"}),
        (of_schema, {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}),
    ],
)
def test_rules_that_have_only_themselves_are_refused(make, form):
    with pytest.raises(RequestError, match="^field: no text can come next, wanted rules that come to an end$"):
        make(form, "field")


def test_rules_without_an_end_on_the_way(tokenizer):
    matcher = Matcher(tokenizer, of_gbnf('root ::= "a" b | "c"\nb ::= b b', "field"), False)
    matcher.push(tokenizer.encode("a")[0])
    with pytest.raises(RequestError, match="^field: no text can come next, wanted rules that come to an end$"):
        matcher.rows([])


@pytest.mark.parametrize("tags", [False, True], ids=["tags as text", "tags as tokens"])
def test_reasoning_is_free_and_does_not_end_the_answer(tokenizer, tagged, tags):
    used = tagged if tags else tokenizer
    grammar = of_schema(PERSON)
    thought = "Is it {Ann}?\n\n42.\n"
    assert takes(used, grammar, thought, thinking=True) == "part"
    assert takes(used, grammar, f'{thought}</think>\n\n{{"name":"Ann","age":42}}', thinking=True) == "whole"
    assert takes(used, grammar, f'{thought}</think>{{"name":"Ann","age":42}}', thinking=True) == "whole"
    assert takes(used, grammar, f"{thought}</think>\n\nAnn", thinking=True) == "Ann"


def test_drafts_end_where_the_grammar_refuses_one(tokenizer):
    """Rows are those of the tokens before them, whether they were drafted or drawn."""
    grammar, text = of_schema(PERSON), '{"name":"Ann","age":42}'
    ids, end = tokenizer.encode(text), min(tokenizer.eog_token_ids)
    wrong = tokenizer.encode("]")[0]
    ahead, behind = Matcher(tokenizer, grammar, False), Matcher(tokenizer, grammar, False)
    drafted, rows = ahead.rows([*ids[:3], wrong, *ids[3:]])
    assert drafted == ids[:3] and len(rows) == 4
    for index in range(4):
        np.testing.assert_array_equal(rows[index], behind.rows([])[1][0])
        behind.push(ids[index])
    again, _ = ahead.rows(ids[:5])
    assert again == ids[:5], "asking ahead changes nothing"
    for token_id in ids:
        ahead.push(token_id)
    assert ahead.rows([end, 5])[0] == [end]
    ahead.push(end)
    assert ahead.rows([])[0] == []


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "parameters": {
                "type": "object",
                "$defs": {"Place": {"enum": ["Rome", "Oslo"], "type": "string"}},
                "properties": {
                    "text": {"type": "string"},
                    "most": {"type": "integer"},
                    "place": {"$ref": "#/$defs/Place"},
                    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "more": {"type": "object", "properties": {"x": {"type": "number"}}, "additionalProperties": False},
                    "code": {"type": "string", "pattern": "^[A-Z]/[0-9]{2}$"},
                    "short": {"type": "string", "maxLength": 3},
                },
                "required": ["text", "most"],
            },
        },
    },
    {"type": "function", "function": {"name": "stop"}},
]


def call(name: str, **parameters: str) -> str:
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items())
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


WHOLE = {
    "text": "a <b>\n</parameter>x",
    "most": "12",
    "place": "Oslo",
    "note": "null",
    "more": '{"x":1.5}',
    "code": "A/07",
}


@pytest.mark.parametrize("tags", [False, True], ids=["tags as text", "tags as tokens"])
def test_forced_calls(tokenizer, tagged, tags):
    used, grammar = tagged if tags else tokenizer, of_calls(TOOLS, required=True)
    assert takes(used, grammar, call("find", **WHOLE)) == "whole"
    assert takes(used, grammar, call("find", text="x", most="1", short="abc") + "\n" + call("stop")) == "whole"
    for wrong in (
        "Hello",
        call("find", text="x"),
        call("find", text="x", most="many"),
        call("find", text="x", most="1", place="Paris"),
        call("find", text="x", most="1", code="A/7"),
        call("find", text="x", most="1", short="abcd"),
        call("find", text="x", most="1", more='{"y":1}'),
        call("other"),
    ):
        assert takes(used, grammar, wrong) not in ("whole", "part"), wrong
    once = of_calls(TOOLS, required=True, parallel=False)
    assert takes(used, once, call("stop") + "\n") == "\n"


@pytest.mark.parametrize("tags", [False, True], ids=["tags as text", "tags as tokens"])
def test_text_with_strict_calls(tokenizer, tagged, tags):
    used, grammar = tagged if tags else tokenizer, of_calls(TOOLS, required=False)
    assert takes(used, grammar, "Nothing to call.") == "whole"
    assert takes(used, grammar, f"I look.\n{call('find', text='x', most='1')}\n{call('stop')} Done.") == "whole"
    assert takes(used, grammar, f"I look.\n{call('find', text='x')}") not in ("whole", "part")
    or_json = of_calls(TOOLS, required=False, instead=PERSON)
    assert takes(used, or_json, call("stop")) == takes(used, or_json, '{"name":"","age":0}') == "whole"
    assert takes(used, or_json, "Hello") == "Hello"


def test_what_a_forced_call_says_is_what_the_schema_wants():
    found = parse_tool_call("\n" + call("find", **WHOLE).removeprefix("<tool_call>\n"), TOOLS)
    assert found.arguments == {
        "text": "a <b>\n</parameter>x",
        "most": 12,
        "place": "Oslo",
        "note": None,
        "more": {"x": 1.5},
        "code": "A/07",
    }


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"properties": {"a": {"type": "strin"}}}, "tools[0].function.parameters.properties.a: Invalid type: strin"),
        (
            {"properties": {"a": {"type": "string", "format": "date"}}},
            "tools[0].function.parameters.properties.a.format: ",
        ),
        ({"properties": {"a": {"type": "string", "pattern": "(?=a)"}}}, "tools: "),
        ({"properties": {"a": 1.5}}, "tools[0].function.parameters.properties.a: found 1.5, wanted a JSON schema"),
        ({"properties": {"a": {"$ref": "#/none"}}}, "tools[0].function.parameters.properties.a: found None, wanted"),
        ({"properties": {"a>": {}}}, "tools[0].function.parameters: a name of a parameter has >"),
        ({"required": ["a"]}, "tools[0].function.parameters.required: there is no property 'a'"),
        ({"required": 3}, "tools[0].function.parameters.required: wanted a list of names"),
        ({"required": [[]]}, "tools[0].function.parameters.required: wanted a list of names"),
    ],
)
def test_tools_that_cannot_be_followed(parameters, message):
    with pytest.raises(RequestError, match=f"^{re.escape(message)}"):
        of_calls([{"type": "function", "function": {"name": "f", "parameters": parameters}}], required=True)


def random_schema(rng: np.random.Generator, depth: int = 3) -> dict:
    """A bounded one, so that each walk through it ends."""
    kind = rng.integers(0, 5 if depth == 0 else 8)
    if kind == 0:
        return {"type": "string", "maxLength": int(rng.integers(0, 6))}
    if kind == 1:
        return {"type": "integer", "minimum": int(rng.integers(-50, 0)), "maximum": int(rng.integers(0, 2000))}
    if kind == 2:
        return {"type": ["boolean", "null"]}
    if kind == 3:
        return {"enum": ["ä", 'q"\\', 3, None, [1], {"a": {}}][: int(rng.integers(1, 7))]}
    if kind == 4:
        return {"type": "string", "pattern": r"^[a-c]{1,3}(-\d\d)?$"}
    inner = [random_schema(rng, depth - 1) for _ in range(int(rng.integers(1, 4)))]
    if kind == 5:
        return {"type": "array", "items": inner[0], "minItems": 1, "maxItems": 3}
    if kind == 6:
        return {"anyOf": inner}
    names = ["a", "b b", "Ж"][: len(inner)]
    return {
        "type": "object",
        "properties": dict(zip(names, inner, strict=True)),
        "required": names[: int(rng.integers(0, len(names) + 1))],
        "additionalProperties": False,
    }


@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(n, marks=pytest.mark.exhaustive) for n in range(20, 500))])
def test_whatever_is_drawn_is_valid(tokenizer, seed):
    """A walk of tokens drawn at random among those allowed, which knows nothing of JSON."""
    rng = np.random.default_rng(seed)
    schema = random_schema(rng)
    matcher, ids = Matcher(tokenizer, of_schema(schema), False), []
    while len(ids) < 2000:
        (row,) = matcher.rows([])[1]
        token_id = int(rng.choice(allowed(row, tokenizer.vocab_size)))
        if token_id in tokenizer.eog_token_ids:
            break
        ids.append(token_id)
        matcher.push(token_id)
    text = tokenizer.decode(ids)
    jsonschema_rs.validate(schema, json.loads(text))
    assert takes(tokenizer, of_schema(schema), tokenizer.decode(ids[: len(ids) // 2])) != ""


def test_without_the_package_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(RequestError, match="^schema: the package llguidance is not installed; pip install"):
        of_schema(PERSON)
