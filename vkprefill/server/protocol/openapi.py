"""The description of the API at /openapi.json."""

from __future__ import annotations

from vkprefill.generation.sampling import LIMITS
from vkprefill.server.protocol.messages import ROLES
from vkprefill.server.protocol.requests import MAX_LOGPROBS, MAX_STOP_CHARS, MAX_STOPS, MAX_TOKENS
from vkprefill.specprefill.guards import STATUSES

Json = dict[str, object]


def openapi_document(version: str) -> Json:
    """OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "vkprefill",
            "version": version,
            "description": "OpenAI-compatible API with speculative prefill.",
        },
        "paths": {
            "/v1/chat/completions": {
                "post": _post("Answer a conversation", _chat(), _answer("chat.completion"), stream=True)
            },
            "/v1/completions": {
                "post": _post("Continue a text", _completion(), _answer("text_completion"), stream=True)
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
                    errors=(503,),
                    key=False,
                )
            },
            "/props": {"get": _get("Settings of the server", _object(total_slots={"type": "integer"}))},
            "/metrics": {"get": _get("Counters for Prometheus", None)},
            "/tokenize": {"post": _post("Text to token ids", _tokenize(), _object(tokens={"type": "array"}))},
            "/detokenize": {
                "post": _post("Token ids to text", _object(tokens=_token_ids()), _object(content={"type": "string"}))
            },
            "/apply-template": {
                "post": _post("Messages to the text of a prompt", _template(), _object(prompt={"type": "string"}))
            },
        },
        "components": {
            "schemas": {"Error": _error(), "Message": _message(), "Tool": _tool(), "SpecPrefill": _specprefill()},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _object(required: bool = True, **properties: Json) -> Json:
    """An object with these properties, all required or none; others are allowed."""
    return {"type": "object", "properties": properties, **({"required": list(properties)} if required else {})}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _nullable(**schema: object) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


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
    responses = {"200": {"description": "OK", "content": content}, **_errors(*errors, *((401,) if key else ()))}
    return {"summary": summary, "parameters": parameters or [], "responses": responses}


def _post(summary: str, body: Json, answer: Json, *, stream: bool = False) -> Json:
    content = {"application/json": {"schema": answer}}
    if stream:
        content["text/event-stream"] = {}
    errors = _errors(400, 401, 408, 413, 500, 503, 504) if stream else _errors(400, 401, 408, 413)
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": {"description": "OK", "content": content}, **errors},
    }


def _errors(*statuses: int) -> Json:
    content = {"application/json": {"schema": _ref("Error")}}
    return {str(status): {"description": "Error", "content": content} for status in statuses}


def _error() -> Json:
    text = _nullable(type="string")
    return _object(error=_object(message={"type": "string"}, type={"type": "string"}, param=text, code=text))


def _name() -> Json:
    return {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _message() -> Json:
    part = _object(type={"const": "text"}, text={"type": "string"})
    return {
        "type": "object",
        "required": ["role", "content"],
        "properties": {
            "role": {"enum": list(ROLES)},
            "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": part}]},
            "reasoning_content": {"type": "string"},
            "name": {"type": "string"},
            "tool_call_id": {"type": "string"},
        },
    }


def _tool() -> Json:
    function = {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"type": "string", "minLength": 1},
            "description": {"type": "string"},
            "parameters": {"type": "object"},
        },
    }
    return _object(type={"const": "function"}, function=function)


def _specprefill() -> Json:
    """In a request; every setting of SpecPrefillConfig is allowed."""
    pair = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 2, "maxItems": 2}
    settings = {
        "type": "object",
        "properties": {
            "keep_ratio": {"type": "number"},
            "min_tokens": {"type": "integer"},
            "kept_ranges": {"type": "array", "items": pair},
        },
    }
    return {"anyOf": [{"type": "boolean"}, settings, {"type": "null"}]}


def _common() -> Json:
    sampling = {
        name: _nullable(type="integer" if kind.__name__ == "Integral" else "number", minimum=least, maximum=greatest)
        for name, (kind, least, greatest) in LIMITS.items()
    }
    stop = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
    limit = _nullable(type="integer", minimum=1, maximum=MAX_TOKENS)
    percent = _nullable(type="number", exclusiveMinimum=0, maximum=100)
    return {
        "model": {"type": "string"},
        "stream": {"type": "boolean"},
        "stream_options": _object(required=False, include_usage={"type": "boolean"}),
        "max_tokens": limit,
        "max_completion_tokens": limit,
        "stop": {"anyOf": [stop, {"type": "array", "items": stop, "maxItems": MAX_STOPS}, {"type": "null"}]},
        "n_probs": {"type": "integer", "minimum": 0, "maximum": MAX_LOGPROBS},
        "return_progress": {"type": "boolean"},
        "cache_prompt": {"type": "boolean"},
        "specprefill": _ref("SpecPrefill"),
        "specprefill_details": {"type": "boolean"},
        "specprefill_keep_pct": percent,
        "speculative_prefill_keep_pct": percent,
        **sampling,
    }


def _chat() -> Json:
    return {
        "type": "object",
        "required": ["messages"],
        "properties": {
            "messages": {"type": "array", "minItems": 1, "items": _ref("Message")},
            "tools": {"type": "array", "items": _ref("Tool")},
            "tool_choice": {"enum": ["auto", "none"]},
            "logprobs": {"type": "boolean"},
            "top_logprobs": _nullable(type="integer", minimum=0, maximum=MAX_LOGPROBS),
            "response_format": _object(type={"const": "text"}),
            "chat_template_kwargs": {"type": "object"},
            **_common(),
        },
    }


def _completion() -> Json:
    prompt = {"anyOf": [{"type": "string"}, _token_ids()]}
    return {
        "type": "object",
        "required": ["prompt"],
        "properties": {
            "prompt": prompt,
            "logprobs": _nullable(type="integer", minimum=0, maximum=MAX_LOGPROBS),
            **_common(),
        },
    }


def _token_ids() -> Json:
    return {"type": "array", "items": {"type": "integer", "minimum": 0}}


def _tokenize() -> Json:
    return {
        "type": "object",
        "required": ["content"],
        "properties": {
            "content": {"type": "string"},
            "add_special": {"type": "boolean"},
            "parse_special": {"type": "boolean"},
            "with_pieces": {"type": "boolean"},
        },
    }


def _template() -> Json:
    return {
        "type": "object",
        "required": ["messages"],
        "properties": {
            "messages": {"type": "array", "minItems": 1, "items": _ref("Message")},
            "tools": {"type": "array", "items": _ref("Tool")},
            "chat_template_kwargs": {"type": "object"},
        },
    }


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
        ttft_ms={"type": "number"},
    )
    return _object(
        id={"type": "string"},
        object={"const": object_name},
        created={"type": "integer"},
        model={"type": "string"},
        choices={"type": "array", "minItems": 1, "maxItems": 1},
        usage=usage,
        timings={"type": "object"},
        specprefill=report,
    )
