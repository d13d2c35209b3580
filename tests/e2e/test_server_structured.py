"""Structured answers and forced tools, by the official client and by hand."""

import json

import pytest

httpx = pytest.importorskip("httpx")
openai = pytest.importorskip("openai")
pytest.importorskip("uvicorn")

from pydantic import BaseModel, Field  # noqa: E402  comes with openai

from tests.e2e.server_process import ServerProcess  # noqa: E402

pytestmark = pytest.mark.usefixtures("gpu")

USER = [{"role": "user", "content": "Who lives in the town?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "maxLength": 12}, "most": {"type": "integer", "maximum": 999}},
            "required": ["place", "most"],
        },
    },
}
OTHER = {"type": "function", "function": {"name": "nothing", "parameters": {"type": "object", "properties": {}}}}
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}


class Town(BaseModel):
    name: str = Field(max_length=12)
    size: int = Field(ge=0, le=9999)
    roads: list[bool] = Field(max_length=3)


@pytest.fixture(scope="module")
def server():
    with ServerProcess("-c", 2048) as started:
        yield started


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.mark.parametrize("temperature", [0, 1])
def test_parse(client, temperature):
    answer = client.chat.completions.parse(
        model="", messages=USER, response_format=Town, temperature=temperature, seed=1, max_tokens=200
    )
    town = answer.choices[0].message.parsed
    assert isinstance(town, Town) and answer.choices[0].finish_reason == "stop"


def test_streamed_parse(client):
    with client.chat.completions.stream(
        model="", messages=USER, response_format=Town, temperature=0, max_tokens=200
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        town = stream.get_final_completion().choices[0].message.parsed
    assert Town.model_validate_json(text) == town


@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", {"look_up", "nothing"}), ({"type": "function", "function": {"name": "look_up"}}, {"look_up"})],
)
@pytest.mark.parametrize("stream", [False, True])
def test_forced_calls(client, choice, names, stream):
    asked = {"model": "", "messages": USER, "tools": [TOOL, OTHER], "tool_choice": choice, "temperature": 0}
    asked |= {"parallel_tool_calls": False, "max_tokens": 200}
    if stream:
        deltas = [chunk.choices[0] for chunk in client.chat.completions.create(stream=True, **asked) if chunk.choices]
        (call,) = [call for one in deltas for call in one.delta.tool_calls or []]
        assert deltas[-1].finish_reason == "tool_calls"
    else:
        choice = client.chat.completions.create(**asked).choices[0]
        (call,), reason = choice.message.tool_calls, choice.finish_reason
        assert reason == "tool_calls" and choice.message.content is None
    arguments = json.loads(call.function.arguments)
    assert call.function.name in names
    if call.function.name == "look_up":
        assert len(arguments["place"]) <= 12 and arguments["most"] <= 999


def post(server, path: str = "/v1/chat/completions", **body: object):
    body = {"messages": USER, "temperature": 0, "max_tokens": 100, **body}
    return httpx.post(f"{server.url}{path}", json=body, timeout=120)


def content(answer) -> str:
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


def test_other_ways_to_ask(server):
    format_of = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    texts = [content(post(server, **fields)) for fields in ({"response_format": format_of}, {"json_schema": SCHEMA})]
    assert texts[0] in ('{"a":1}', '{"a":2}') and len(set(texts)) == 1
    with_logprobs = post(server, json_schema=SCHEMA, logprobs=True, top_logprobs=3)
    assert content(with_logprobs) == texts[0]
    assert "".join(e["token"] for e in with_logprobs.json()["choices"][0]["logprobs"]["content"]) == texts[0]
    assert content(post(server, grammar='root ::= "left" | "right"')) in ("left", "right")
    assert content(post(server, response_format={"type": "json_object"}, max_tokens=5)).startswith("{")
    plain = post(server, "/v1/completions", prompt="The", json_schema=SCHEMA)
    assert json.loads(plain.json()["choices"][0]["text"])["a"] in (1, 2)
    sparse = {"min_tokens": 0, "break_even": False, "keep_ratio": 0.3, "select_mode": "chunk"}
    long = [{"role": "user", "content": "The river was quiet and the bridge was old. " * 30}]
    answer = post(server, messages=long, json_schema=SCHEMA, specprefill=sparse)
    assert json.loads(content(answer))["a"] in (1, 2) and answer.json()["specprefill"]["status"] == "active"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"json_schema": {"type": "nope"}}, "json_schema"),
        ({"grammar": "root ::= nothing"}, "grammar"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "required", "tools": [TOOL], "json_schema": {}}, "tool_choice"),
        ({"grammar": "root ::= [a]", "json_schema": {}}, "grammar"),
    ],
)
def test_what_cannot_be_had_is_refused(server, fields, param):
    answer = post(server, **fields)
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == param and "\n" not in error["message"]
