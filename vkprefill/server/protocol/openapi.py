"""The description of the API at /openapi.json. Its requests come from the tables that check them."""

from __future__ import annotations

from vkprefill.server.protocol.anthropic import COUNT, MESSAGES
from vkprefill.server.protocol.kinds import Json
from vkprefill.server.protocol.responses import RESPONSES
from vkprefill.server.protocol.tables import (
    APPLY_TEMPLATE,
    CHAT,
    COMPLETION,
    DETOKENIZE,
    MESSAGE,
    RESPONSE_FORMAT,
    SPECPREFILL,
    TOKENIZE,
    TOOL,
)
from vkprefill.specprefill.guards import STATUSES
from vkprefill.specprefill.plan import CHECK_STATUSES


def openapi_document(version: str) -> Json:
    """The document, of OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "vkprefill",
            "version": version,
            "description": "OpenAI-compatible API with speculative prefill.",
        },
        "paths": {
            "/v1/chat/completions": {
                "post": _post("Answer a conversation", CHAT.schema(), _answer("chat.completion"), stream=True)
            },
            "/v1/completions": {
                "post": _post("Continue a text", COMPLETION.schema(), _answer("text_completion"), stream=True)
            },
            "/v1/responses": {
                "post": _post("Answer, in the form of responses", RESPONSES.schema(), _response(), 404, stream=True)
            },
            "/v1/messages": {"post": _post("Answer, in Anthropic's form", MESSAGES.schema(), _message(), stream=True)},
            "/v1/messages/count_tokens": {
                "post": _post("Tokens of a prompt", COUNT.schema(), _object(input_tokens={"type": "integer"}))
            },
            "/v1/models": {"get": _get("The model", _object(object={"const": "list"}, data={"type": "array"}))},
            "/v1/models/{name}": {
                "get": _get(
                    "The model by its name", _object(id={"type": "string"}), parameters=[_name()], errors=(404,)
                )
            },
            "/health": {
                "get": _get(
                    "200 when ready, else 503 with the stage",
                    _object(status={"type": "string"}),
                    errors=(400, 503),
                    key=False,
                )
            },
            "/props": {"get": _get("Settings of the server", _object(total_slots={"type": "integer"}))},
            "/tokenizer_info": {
                "get": _get("Special tokens and chat template", _object(eos_token={"type": ["string", "null"]}))
            },
            "/metrics": {"get": _get("Counters, gauges and histograms for Prometheus", None)},
            "/slots": {
                "get": _get(
                    "What each slot does",
                    {"type": "array", "items": _object(id={"type": "integer"}, is_processing={"type": "boolean"})},
                    parameters=[_fail_on_no_slot()],
                    errors=(400, 503),
                )
            },
            "/tokenize": {"post": _post("Text to token ids", TOKENIZE.schema(), _object(tokens={"type": "array"}))},
            "/detokenize": {
                "post": _post("Token ids to text", DETOKENIZE.schema(), _object(content={"type": "string"}))
            },
            "/apply-template": {
                "post": _post(
                    "Messages to the text of a prompt", APPLY_TEMPLATE.schema(), _object(prompt={"type": "string"})
                )
            },
        },
        "components": {
            "schemas": {
                "Error": _error(),
                **{one.label: one.kind.schema() for one in (MESSAGE, TOOL, RESPONSE_FORMAT, SPECPREFILL)},
            },
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _object(**properties: Json) -> Json:
    """An object with these properties, all required; others are allowed."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _get(
    summary: str,
    schema: Json | None,
    *,
    parameters: list[Json] | None = None,
    errors: tuple[int, ...] = (),
    key: bool = True,
) -> Json:
    content = (
        {"text/plain": {"schema": {"type": "string"}}} if schema is None else {"application/json": {"schema": schema}}
    )
    responses = {"200": {"description": "OK", "content": content}, **_errors(*errors, 403, *((401,) if key else ()))}
    return {"summary": summary, "parameters": parameters or [], "responses": responses}


def _post(summary: str, body: Json, answer: Json, *more: int, stream: bool = False) -> Json:
    """more: statuses of its own errors."""
    content = {"application/json": {"schema": answer}}
    if stream:
        content["text/event-stream"] = {}
    errors = _errors(400, 401, 403, 408, 413, 415, 503, *more, *((500, 504) if stream else ()))
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": {"description": "OK", "content": content}, **errors},
    }


def _errors(*statuses: int) -> Json:
    content = {"application/json": {"schema": _ref("Error")}}
    return {str(status): {"description": "Error", "content": content} for status in statuses}


def _error() -> Json:
    text = {"type": ["string", "null"]}
    return _object(error=_object(message={"type": "string"}, type={"type": "string"}, param=text, code=text))


def _name() -> Json:
    return {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _fail_on_no_slot() -> Json:
    return {
        "name": "fail_on_no_slot",
        "in": "query",
        "schema": {"enum": [0, 1]},
        "description": "1: 503 if all are busy",
    }


def _response() -> Json:
    return _object(
        id={"type": "string"},
        object={"const": "response"},
        status={"enum": ["completed", "incomplete"]},
        output={"type": "array"},
        usage=_object(input_tokens={"type": "integer"}, output_tokens={"type": "integer"}),
    )


def _message() -> Json:
    usage = _object(input_tokens={"type": "integer"}, output_tokens={"type": "integer"})
    return _object(
        type={"const": "message"},
        role={"const": "assistant"},
        content={"type": "array"},
        stop_reason={"type": "string"},
        usage=usage,
    )


def _answer(object_name: str) -> Json:
    details = _object(cached_tokens={"type": "integer"})
    usage = _object(
        prompt_tokens={"type": "integer"},
        completion_tokens={"type": "integer"},
        total_tokens={"type": "integer"},
        prompt_tokens_details=details,
    )
    report = _object(
        status={"enum": list(STATUSES)},
        reason={"type": "string"},
        prompt_n={"type": "integer"},
        cached_n={"type": "integer"},
        cached_ranges={"type": "array"},
        kept_n={"type": "integer"},
        kept_ranges={"type": "array"},
        settings={"type": "object"},
        unused={"type": "object", "additionalProperties": {"type": "string"}},
        ttft_ms={"type": "number"},
        check=_object(status={"enum": list(CHECK_STATUSES)}, reason={"type": "string"}),
    )
    answer = _object(
        id={"type": "string"},
        object={"const": object_name},
        created={"type": "integer"},
        model={"type": "string"},
        choices={"type": "array", "minItems": 1},
        usage=usage,
        timings={"type": "object"},
        specprefill=report,
    )
    number_list = {"type": "array", "items": {"type": "number"}}
    answer["properties"]["layer_map"] = _object(
        kinds={"type": "array", "items": {"type": "string"}},
        bounds={"type": "array", "items": {"type": "integer"}},
        weights={"type": "array", "items": number_list},
        memory_bytes={"type": "integer"},
    )
    return answer
