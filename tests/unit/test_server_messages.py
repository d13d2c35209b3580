"""The Messages API of Anthropic over a scripted engine: bodies that are taken, and answers in its form."""

import json

import pytest

from tests.unit.scripted_server import CALL, HELLO
from vkprefill.server.api_error import ApiError
from vkprefill.server.protocol.anthropic import ERRORS, as_chat
from vkprefill.server.protocol.fields import shown

MAX = {"max_tokens": 50}
TOOL = {"name": "add", "description": "adds", "input_schema": {"properties": {"a": {"type": "integer"}}}}
# As coding agents send them: blocks everywhere, marks of a cache, results of tools beside text
AGENT = {
    "model": "any",
    **MAX,
    "stream": True,
    "system": [
        {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be short."},
    ],
    "metadata": {"user_id": "u"},
    "context_management": {"edits": []},
    "thinking": {"type": "enabled", "budget_tokens": 20},
    "tools": [{**TOOL, "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Add."}, {"type": "text", "text": "Now."}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                {"type": "text", "text": "I add."},
                {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "2"}]},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no", "is_error": True},
                {"type": "text", "text": "Go on."},
            ],
        },
    ],
}


def test_a_request_of_an_agent():
    chat = as_chat(AGENT)
    assert chat["messages"] == [
        {"role": "system", "content": "You are an agent.\n\nBe short."},
        {"role": "user", "content": "Add.\n\nNow."},
        {
            "role": "assistant",
            "content": "I add.",
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "toolu_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "2"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "Error: no"},
        {"role": "user", "content": "Go on."},
    ]
    function = {"name": "add", "description": "adds", "parameters": TOOL["input_schema"]}
    assert chat["tools"] == [{"type": "function", "function": function}]
    assert (chat["enable_thinking"], chat["thinking_budget"], chat["stream"], chat["max_tokens"]) == (
        True,
        20,
        True,
        50,
    )


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"tool_choice": {"type": "any"}}, {"tool_choice": "required"}),
        ({"tool_choice": {"type": "none"}}, {"tool_choice": "none"}),
        (
            {"tool_choice": {"type": "tool", "name": "add", "disable_parallel_tool_use": True}},
            {"tool_choice": {"type": "function", "function": {"name": "add"}}, "parallel_tool_calls": False},
        ),
        ({"stop_sequences": ["x"]}, {"stop": ["x"]}),
        ({"min_p": 0.1, "thinking_budget": 3}, {"min_p": 0.1, "thinking_budget": 3}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}},
        ),
    ],
)
def test_fields(fields, wanted):
    chat = as_chat({"messages": HELLO, **MAX, **fields})
    assert {name: chat.get(name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": None}, "max_tokens: missing"),
        ({"messages": []}, "messages: it is empty"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
            "tools[0].type: found 'web_search_20250305'",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "messages[0].content[0].type: found 'image'",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text: missing"),
        *(
            (
                {"messages": [{"role": "user", "content": [{"type": kind, "name": "f", name: value}]}]},
                f"messages[0].content[0].{name}: found {shown(value)}, wanted {wanted}",
            )
            for kind, name, values, wanted in (
                ("tool_use", "id", (True, -1, 1.5, {}), "text"),
                ("tool_use", "name", (1,), "text"),
                ("tool_use", "input", (True, "{}", [], 1), "an object"),
                ("tool_result", "tool_use_id", (True, -1, 1.5, []), "text"),
                ("tool_result", "is_error", ("true", 1), "true or false"),
                ("tool_result", "content", (True, {}), "text or a list of text blocks"),
                ("text", "text", (1,), "text"),
                ("thinking", "thinking", ([],), "text"),
            )
            for value in values
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "image"}]}]}]},
            "messages[0].content[0].content[0].type: found 'image', wanted text",
        ),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name: missing"),
        ({"stop": ["x"]}, "stop: found a list, which is not supported; use stop_sequences"),
        ({"n": 2}, "n: found 2, which is not supported"),
        ({"lora": [{}]}, "lora: found a list, which is not supported"),
        ({"mcp_servers": [{}]}, "mcp_servers: found 1 in it"),
    ],
)
def test_what_is_refused(fields, message):
    with pytest.raises(ApiError) as refused:
        as_chat({"messages": HELLO, **MAX, **fields})
    assert str(refused.value).startswith(message)
    if "messages" in fields:
        with pytest.raises(ApiError) as refused:
            as_chat({"messages": HELLO, **fields}, count=True)
        assert str(refused.value).startswith(message)


def events_of(response) -> list[dict]:
    """Each has its type as its name."""
    assert response.status_code == 200, response.text
    found = []
    for event in filter(None, response.text.split("\n\n")):
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


PIECES = ["<think>\nHm", ".\n</think>\n\nIt ", "is.\n", CALL]


def test_a_whole_answer(send, engine):
    engine.pieces = PIECES
    body = {"messages": HELLO, "tools": [TOOL], **MAX}
    answer = send("POST", "/v1/messages", json=body).json()
    thought, text, use = answer["content"]
    assert (thought["type"], thought["thinking"]) == ("thinking", "Hm.") and text == {"type": "text", "text": "It is."}
    assert (use["type"], use["name"], use["input"]) == ("tool_use", "add", {"a": 1}) and use["id"].startswith("toolu_")
    assert (answer["stop_reason"], answer["stop_sequence"], answer["role"]) == ("tool_use", None, "assistant")
    assert answer["usage"] == {
        "input_tokens": 6,
        "cache_read_input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "output_tokens": 5,
    }
    assert engine.jobs[0].options.max_tokens == 50


def test_a_streamed_answer(send, engine):
    engine.pieces = PIECES
    begun, *parts, delta, end = events_of(
        send("POST", "/v1/messages", json={"messages": HELLO, "tools": [TOOL], "stream": True, **MAX})
    )
    assert begun["type"] == "message_start" and begun["message"]["content"] == [] and end == {"type": "message_stop"}
    assert delta["delta"]["stop_reason"] == "tool_use" and delta["usage"]["output_tokens"] == 5
    blocks: list[dict] = []
    for part in parts:
        assert part["index"] == len(blocks) - (part["type"] != "content_block_start")
        if part["type"] == "content_block_start":
            blocks.append({**part["content_block"], "json": "", "open": True})
        elif part["type"] == "content_block_stop":
            blocks[-1]["open"] = False
        else:
            kind, piece = part["delta"].pop("type"), next(iter(part["delta"].values()))
            name = {"thinking_delta": "thinking", "text_delta": "text", "input_json_delta": "json"}[kind]
            blocks[-1][name] += piece
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use"]
    assert not any(block["open"] for block in blocks)
    assert (blocks[0]["thinking"], blocks[1]["text"], json.loads(blocks[2]["json"])) == ("Hm.", "It is.", {"a": 1})


@pytest.mark.parametrize(("reason", "wanted"), [("stop", "end_turn"), ("length", "max_tokens")])
def test_why_an_answer_ended(send, engine, reason, wanted):
    engine.finish_reason = reason
    assert send("POST", "/messages", json={"messages": HELLO, **MAX}).json()["stop_reason"] == wanted


def test_errors_have_their_form(send, engine):
    answer = send("POST", "/v1/messages", json={"messages": HELLO})
    assert answer.status_code == 400 and answer.json()["type"] == "error"
    assert (
        answer.json()["error"]["type"] == "invalid_request_error" and "max_tokens" in answer.json()["error"]["message"]
    )
    engine.error = ApiError(503, "busy")
    assert send("POST", "/v1/messages", json={"messages": HELLO, **MAX}).json()["error"]["type"] == "overloaded_error"
    engine.error = ApiError(500, "broken")
    *_, last = events_of(send("POST", "/v1/messages", json={"messages": HELLO, "stream": True, **MAX}))
    assert last["type"] == "error" and last["error"]["message"] == "broken"


@pytest.mark.parametrize("path", ["/v1/messages", "/messages", "/v1/messages/count_tokens", "/messages/none"])
def test_errors_before_the_body_have_their_form(send, path):
    pytest.importorskip("starlette")
    from vkprefill.server.http.access import access_for

    access = access_for("127.0.0.1", allowed_hosts=["test"], api_key="k")
    key = {"X-Api-Key": "k"}
    for method, headers, status, kind in (
        ("POST", {}, 401, "authentication_error"),
        ("GET", key, 404 if path.endswith("none") else 405, None),
        ("POST", {**key, "Origin": "https://evil.test"}, 403, "permission_error"),
        ("POST", {**key, "Origin": "http://test", "Content-Type": "text/plain"}, 415, "invalid_request_error"),
    ):
        answer = send(method, path, headers=headers, options={"access": access})
        body = answer.json()
        assert (answer.status_code, body["type"]) == (status, "error") and body["error"]["message"]
        assert body["error"]["type"] == (kind or ERRORS.get(status, "invalid_request_error"))
    other = send("POST", "/v1/chat/completions", options={"access": access})
    assert other.status_code == 401 and set(other.json()) == {"error"}, "of OpenAI's paths in theirs"


def test_tokens_are_counted(send, engine):
    counted = send("POST", "/v1/messages/count_tokens", json={"messages": HELLO, "tools": [TOOL]}).json()
    send("POST", "/v1/messages", json={"messages": HELLO, "tools": [TOOL], **MAX})
    assert counted == {"input_tokens": len(engine.jobs[0].token_ids)}
    wrong = send("POST", "/v1/messages/count_tokens", json={"messages": []})
    assert wrong.status_code == 400 and wrong.json()["type"] == "error"
