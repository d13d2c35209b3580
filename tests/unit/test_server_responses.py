"""OpenAI's Responses API over a scripted engine: bodies that are taken, answers in its form, what is remembered."""

import json

import pytest

from tests.unit.scripted_server import CALL
from vkprefill.server.api_error import ApiError
from vkprefill.server.protocol.responses import MAX_REMEMBERED, Remembered, as_chat

TOOL = {"type": "function", "name": "add", "parameters": {"properties": {"a": {"type": "integer"}}}}
CUSTOM = {"type": "custom", "name": "run", "description": "runs code"}
FUNCTION = {name: TOOL[name] for name in ("name", "parameters")}
BESIDE = {"top_k": 5, "thinking_budget": 3, "ignore_eos": True, "stop_token_ids": [5], "grammar": 'root ::= "x"'}
BESIDE |= {"min_tokens": 2, "stop": ["x"], "enable_thinking": False, "seed": 4, "specprefill": False}
PIECES = ["<think>\nHm", ".\n</think>\n\nIt ", "is.\n", CALL]


def chat_of(**fields: object) -> dict:
    return as_chat({"input": "Hello", **fields}, Remembered())[0]


def test_items_of_one_answer_are_one_message():
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Add "}, {"type": "input_text", "text": "1."}]},
        {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I add."}]},
        {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"a":1}'},
        {"type": "function_call_output", "call_id": "c", "output": "2"},
        {"type": "message", "role": "developer", "content": "Go on."},
    ]
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
    assert chat_of(input=items, instructions="Be short.")["messages"] == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Add 1."},
        {"role": "assistant", "content": "I add.", "reasoning_content": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "2"},
        {"role": "developer", "content": "Go on."},
    ]


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"max_output_tokens": 5}, {"max_tokens": 5}),
        *(({name: value}, {name: value}) for name, value in BESIDE.items()),
        (
            {"tools": [TOOL]},
            {"tools": [{"type": "function", "function": FUNCTION}]},
        ),
        (
            {"tool_choice": {"type": "function", "name": "add"}},
            {"tool_choice": {"type": "function", "function": {"name": "add"}}},
        ),
        ({"reasoning": {"effort": "none", "summary": "auto"}}, {"reasoning_effort": "none"}),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}}},
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}},
        ),
        ({"include": ["reasoning.encrypted_content"], "metadata": {}, "top_logprobs": 0, "truncation": "disabled"}, {}),
    ],
)
def test_fields(fields, wanted):
    found = chat_of(**fields)
    assert {name: found.get(name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"input": None}, "input: missing"),
        ({"input": [{"type": "file_search_call"}]}, "input[0].type: found 'file_search_call'"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]: only parts of text",
        ),
        ({"input": [{"role": "user"}]}, "input[0].content: missing, wanted text or a list of parts"),
        (
            {"tools": [{"type": "web_search"}]},
            "tools[0].type: found 'web_search', wanted function or custom; tools that run at the service are not here",
        ),
        (
            {"tools": [{**CUSTOM, "format": {"type": "grammar", "syntax": "lark", "definition": "start: /a/"}}]},
            "tools[0].format.type: found 'grammar', wanted text",
        ),
        ({"input": [{"type": "custom_tool_call", "name": "run"}]}, "input[0].input: missing, wanted text"),
        ({"max_tokens": 5}, "max_tokens: found 5, which is not supported; use max_output_tokens"),
        ({"response_format": {"type": "json_object"}}, "response_format: found an object, which is not supported; use"),
        ({"n": 2}, "n: found 2, which is not supported"),
        ({"guided_regex": "a"}, "guided_regex: found 'a', which is not supported; use response_format or grammar"),
        ({"speculative.n_maxx": 1}, "speculative.n_maxx: not known"),
        ({"background": True}, "background: found True, which is not supported"),
        ({"conversation": "c"}, "conversation: found 'c', which is not supported"),
        ({"previous_response_id": "resp_1"}, "previous_response_id: found 'resp_1', which is not remembered"),
    ],
)
def test_what_is_refused(fields, message):
    with pytest.raises(ApiError) as refused:
        chat_of(**fields)
    assert str(refused.value).startswith(message)


def test_the_oldest_are_forgotten():
    remembered = Remembered()
    for number in range(MAX_REMEMBERED + 1):
        remembered.keep(str(number), [{"role": "user", "content": str(number)}])
    assert remembered.find("1") == [{"role": "user", "content": "1"}]
    remembered.keep("long", [{"role": "user", "content": "x" * (2**25 - 40)}])
    for gone in ("0", "1", str(MAX_REMEMBERED)):
        with pytest.raises(ApiError, match="not remembered"):
            remembered.find(gone)
    assert remembered.find("long")


def test_a_whole_answer(send, engine):
    engine.pieces = PIECES
    answer = send("POST", "/v1/responses", json={"input": "Hello", "tools": [TOOL], "temperature": 0.5}).json()
    reasoning, message, call = answer["output"]
    assert [item["type"] for item in answer["output"]] == ["reasoning", "message", "function_call"]
    assert reasoning["content"][0]["text"] == "Hm." and message["content"][0]["text"] == "It is."
    assert (call["name"], json.loads(call["arguments"]), call["status"]) == ("add", {"a": 1}, "completed")
    assert (answer["status"], answer["temperature"], answer["incomplete_details"]) == ("completed", 0.5, None)
    usage = answer["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (10, 5, 15)
    assert (
        usage["input_tokens_details"] == {"cached_tokens": 4, "cache_write_tokens": 0}
        and usage["output_tokens_details"]["reasoning_tokens"] > 0
    )


def test_a_streamed_answer_adds_up(send, engine):
    engine.pieces = PIECES
    response = send("POST", "/responses", json={"input": "Hello", "tools": [TOOL], "stream": True})
    found = [event.split("\n") for event in response.text.split("\n\n") if event]
    events = [json.loads(data.removeprefix("data: ")) for _, data in found]
    assert [name for name, _ in found] == [f"event: {event['type']}" for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    items: list[dict] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(items)
            items.append({"id": event["item"]["id"], "text": ""})
        elif kind.endswith(".delta"):
            assert event["item_id"] == items[-1]["id"]
            items[-1]["text"] += event["delta"]
        elif kind.endswith("text.done"):
            assert event["text"] == items[-1]["text"]
        elif kind == "output_item.done":
            items[-1]["item"] = event["item"]
    assert [item["text"] for item in items] == ["Hm.", "It is.", '{"a": 1}']
    last = events[-1]
    assert last["type"] == "response.completed" and last["response"]["output"] == [item["item"] for item in items]


TEXT = '<tool_call>\n<function=run>\n<parameter=input>\nprint("1")\n</parameter>\n</function>\n</tool_call>'


def test_custom_tools_take_text(send, engine):
    """To the model they are functions with one parameter; a call with others is given as it stands."""
    body = {"input": "Run.", "tools": [CUSTOM, TOOL], "tool_choice": {"type": "custom", "name": "run"}}
    chat = chat_of(**body)
    parameters = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    assert chat["tools"][0]["function"] == {"name": "run", "description": "runs code", "parameters": parameters}
    assert chat["tool_choice"] == {"type": "function", "function": {"name": "run"}}
    engine.pieces = [TEXT, TEXT.replace("input", "code"), CALL]
    first, second, third = send("POST", "/v1/responses", json=body).json()["output"]
    assert (first["type"], first["name"], first["input"]) == ("custom_tool_call", "run", 'print("1")')
    assert json.loads(second["input"]) == {"code": 'print("1")'} and third["type"] == "function_call"
    streamed = send("POST", "/v1/responses", json={**body, "stream": True}).text.split("\n\n")
    events = [json.loads(event.split("data: ")[1]) for event in streamed if event]
    deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    assert deltas[0] == 'print("1")' and json.loads(deltas[1]) == {"code": 'print("1")'}
    output = {"type": "custom_tool_call_output", "call_id": first["call_id"], "output": "1"}
    _, said, result = chat_of(input=[{"role": "user", "content": "Run."}, first, output])["messages"]
    assert json.loads(said["tool_calls"][0]["function"]["arguments"]) == {"input": 'print("1")'}
    assert result == {"role": "tool", "tool_call_id": first["call_id"], "content": "1"}


def test_a_cut_answer_is_incomplete(send, engine):
    engine.finish_reason = "length"
    answer = send("POST", "/v1/responses", json={"input": "Hello"}).json()
    assert answer["status"] == "incomplete" and answer["incomplete_details"] == {"reason": "max_output_tokens"}


def test_errors(send, engine):
    answer = send("POST", "/v1/responses", json={"input": "Hello", "previous_response_id": "no"})
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "previous_response_not_found"
    engine.error = ApiError(500, "broken")
    response = send("POST", "/v1/responses", json={"input": "Hello", "stream": True})
    last = json.loads(response.text.split("\n\n")[-2].split("data: ")[1])
    assert (last["type"], last["message"]) == ("error", "broken")


def test_going_on_from_an_earlier_response(service, engine):
    """Its conversation is the beginning of the next one's, without its instructions."""
    httpx = pytest.importorskip("httpx")
    import anyio

    from vkprefill.server.http.app import build_app

    async def exchange():
        app = build_app(service)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            first = (await client.post("/v1/responses", json={"input": "Hello", "instructions": "Be short."})).json()
            more = {"input": "And?", "previous_response_id": first["id"]}
            second = (await client.post("/v1/responses", json={**more, "store": False})).json()
            third = await client.post("/v1/responses", json={"input": "x", "previous_response_id": second["id"]})
            assert third.status_code == 404, "it was not to be kept"

    anyio.run(exchange)
    text = service.prompts.tokenizer.decode(list(engine.jobs[1].token_ids))
    assert "Hello" in text and "Hello there" in text and "And?" in text and "Be short." not in text
