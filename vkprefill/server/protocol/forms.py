"""The form that a request wants of its answer -> a grammar: response_format, json_schema, grammar, tool_choice, strict
tools.
"""

from __future__ import annotations

from collections.abc import Callable

from vkprefill.errors import RequestError
from vkprefill.grammar.calls import of_calls
from vkprefill.grammar.grammars import Grammar, of_gbnf, of_schema
from vkprefill.server.api_error import bad_request
from vkprefill.server.protocol.kinds import Json

ANY_OBJECT = {"type": "object"}
SCHEMA_AT = "response_format.json_schema.schema"


def form_of(asked: Json, tools: list[Json] | None) -> Grammar | None:
    """asked: the checked fields; tools: those that the answer may call. ApiError 400 for one that cannot be had."""
    field, schema = _schema(asked)
    gbnf = asked.get("grammar")
    if gbnf and field is not None:
        raise bad_request("grammar", f"found one beside {field}, wanted one of them")
    choice, parallel = asked.get("tool_choice", "auto"), asked.get("parallel_tool_calls", True)
    forced = choice not in ("auto", "none")
    if forced and (gbnf or field is not None):
        raise bad_request("tool_choice", f"a call is forced, but {field or 'grammar'} wants another answer")
    called = _called(tools, choice)
    strict = any(tool["function"].get("strict") for tool in called)
    if gbnf:
        if strict:
            raise bad_request("grammar", "found one beside strict tools, wanted one of them")
        return _made("grammar", lambda: of_gbnf(gbnf))
    if called and (forced or strict or not parallel or field is not None):
        return _made("tools", lambda: of_calls(called, required=forced, parallel=parallel, instead=schema))
    return None if field is None else _made(field, lambda: of_schema(schema, field))


def _schema(asked: Json) -> tuple[str | None, object]:
    """Name of the field that asks for JSON, and the schema. Two of them: an error."""
    form, plain = asked.get("response_format", {}), asked.get("json_schema")
    kind = form.get("type", "text")
    if kind == "text":
        return (None, None) if plain is None else ("json_schema", plain)
    if plain is not None:
        raise bad_request("json_schema", f"found one beside response_format {kind}, wanted one of them")
    if kind == "json_object":
        return "response_format.schema", form.get("schema", ANY_OBJECT)
    schema = form.get("json_schema", {}).get("schema", form.get("schema"))
    if schema is None:
        raise bad_request(SCHEMA_AT, "missing, wanted a JSON schema")
    return SCHEMA_AT, schema


def _called(tools: list[Json] | None, choice: object) -> list[Json]:
    """The tools that the choice leaves."""
    if choice in ("auto", "none"):
        return tools or []
    if not tools:
        raise bad_request("tool_choice", "a call is forced, but there are no tools")
    if choice == "required":
        return tools
    name = choice["function"]["name"]
    named = [tool for tool in tools if tool["function"]["name"] == name]
    if not named:
        raise bad_request("tool_choice.function.name", f"found {name!r}, which is none of the tools")
    return named[:1]


def _made(field: str, make: Callable[[], Grammar]) -> Grammar:
    try:
        return make()
    except RequestError as error:
        message = str(error)
        name, _, rest = message.partition(": ")
        raise bad_request(name if rest else field, rest or message) from None
