"""The description of the API: it comes from the tables that check requests, and says what they take."""

import json
import re
from dataclasses import fields

import pytest

from tests.unit.scripted_server import BEGUN, HELLO
from vkprefill import SpecPrefillConfig
from vkprefill.server.protocol.openapi import openapi_document
from vkprefill.server.protocol.tables import APPLY_TEMPLATE, CHAT, COMPLETION, DETOKENIZE, TOKENIZE

jsonschema_rs = pytest.importorskip("jsonschema_rs")


def test_openapi(send):
    """The description names what the tables of the requests name, and each reference in it leads somewhere."""
    document = send("GET", "/openapi.json").json()
    assert document["openapi"].startswith("3.")
    tables = {
        "/v1/chat/completions": CHAT,
        "/v1/completions": COMPLETION,
        "/tokenize": TOKENIZE,
        "/detokenize": DETOKENIZE,
        "/apply-template": APPLY_TEMPLATE,
    }
    for path, table in tables.items():
        schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert set(schema["properties"]) == set(table.fields) and schema.get("required", []) == list(table.required)
    schemas = document["components"]["schemas"]
    assert set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document))) == set(schemas)
    names = {setting.name for setting in fields(SpecPrefillConfig)}
    assert set(schemas["SpecPrefill"]["anyOf"][1]["properties"]) == {*names, "kept_ranges"}


def test_every_route_is_described(service):
    """But the page's, and paths that are others without /v1."""
    from vkprefill.server.http.app import _page_routes, build_app

    routes = {route.path.replace("{name:path}", "{name}") for route in build_app(service).app.routes}
    described = set(openapi_document("1")["paths"])
    assert described <= routes
    page = {route.path for route in _page_routes()}
    assert {f"/v1{path}" for path in routes - described - page - {"/openapi.json"}} <= described


BODIES = {
    "/v1/chat/completions": [
        {"messages": HELLO, "n": 1, "stop": "", "top_k": -1, "max_tokens": 5.0, "logit_bias": {}, "n_probs": 0},
        {"messages": HELLO, "chat_template_kwargs": None, "top_logprobs": 0, "stream_options": None, "seed": -1},
        {"messages": BEGUN, "continue_final_message": True, "reasoning_effort": "none", "enable_thinking": 0},
        {"messages": [{"role": "tool", "content": None}, *HELLO], "tools": [], "tool_choice": "none"},
        {"messages": HELLO, "response_format": {"type": "text"}, "specprefill": {"max_keep": 5.0, "protect": []}},
        {"messages": HELLO, "speculative": {"n_max": 3, "p_min": None}, "speculative.n_min": 1},
        {"messages": HELLO, "speculative": {"n_maxx": 3}},
        {"messages": HELLO, "speculative.n_maxx": 3},
        {"messages": HELLO, "n": 2},
        {"messages": HELLO, "max_tokens": 0},
        {"messages": HELLO, "max_tokens": 1.5},
        {"messages": HELLO, "stop": ["x"] * 17},
        {"messages": HELLO, "temperature": True},
        {"messages": HELLO, "ignore_eos": True},
        {"messages": HELLO, "reasoning_effort": "much"},
        {"messages": HELLO, "specprefill": {"keep_ratio": 2}},
        {"messages": HELLO, "specprefill_keep_pct": 0},
        {"messages": [{"role": "user"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        {"messages": []},
        {},
    ],
    "/v1/completions": [
        {"prompt": "x"},
        {"prompt": ["x"], "logprobs": False},
        {"prompt": [[1, 2]], "logprobs": 2.0, "echo": False},
        {"prompt": [1.0, 2], "suffix": None},
        {"prompt": ["x", "y"]},
        {"prompt": []},
        {"prompt": [[]]},
        {"prompt": [-1]},
        {"prompt": None},
        {"prompt": "x", "logprobs": True},
    ],
    "/tokenize": [
        {"content": "x", "with_pieces": None, "prompt": None},
        {"prompt": "x", "add_special_tokens": False},
        {"content": "x", "prompt": "x"},
        {"content": 5},
        {"content": "x", "add_special": 1},
        {},
    ],
    "/detokenize": [{"tokens": [1.0]}, {"tokens": []}, {"tokens": ["x"]}, {"tokens": [-1]}],
    "/apply-template": [{"messages": HELLO, "tools": None}, {"messages": HELLO, "tools": [{}]}],
}


@pytest.mark.parametrize(("path", "body"), [(path, body) for path, bodies in BODIES.items() for body in bodies])
def test_what_the_description_allows_is_what_is_taken(send, path, body):
    document = send("GET", "/openapi.json").json()
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    allowed = jsonschema_rs.Draft202012Validator({**schema, "components": document["components"]}).is_valid(body)
    response = send("POST", path, json=body)
    assert response.status_code == (200 if allowed else 400), response.text
