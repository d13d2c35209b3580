"""Requests as coding agents send them (tests/data/agents), each streamed and whole: answers have their protocol's
shape, OpenAI's by the types of its own client. What cannot be done is refused by name.
"""

import json
from pathlib import Path

import pytest

from tests.unit.scripted_server import CALL, events

pydantic = pytest.importorskip("pydantic")  # comes with openai
chat_types = pytest.importorskip("openai.types.chat")

from openai.types import Completion, responses  # noqa: E402

from tests.unit.test_server_messages import events_of  # noqa: E402

FOLDER = Path(__file__).parents[1] / "data" / "agents"
REQUESTS = {path.stem: json.loads(path.read_text()) for path in FOLDER.glob("*.json")}
DONE = {name for name, request in REQUESTS.items() if "refused" not in request}
THOUGHT, SAID = "<think>\nHm.\n</think>\n\n", "It adds."
EVENT = pydantic.TypeAdapter(responses.ResponseStreamEvent)


@pytest.fixture
def ask(send, engine):
    """ask(name, **fields) -> the server's response to a recorded request."""
    engine.pieces = [THOUGHT, "It ", "adds.", f"\n{CALL}"]

    def ask(name: str, **fields: object):
        request = REQUESTS[name]
        body = {**request["body"], **fields}
        return send("POST", request["path"], json=body, headers=request["headers"])

    return ask


def test_there_are_requests_of_each_protocol():
    starts = {name.partition("-")[0] for name in DONE}
    assert starts == {"messages", "responses", "chat", "completions"} and len(DONE) < len(REQUESTS)


@pytest.mark.parametrize("name", sorted(DONE))
def test_a_whole_answer(ask, name):
    response = ask(name)
    assert response.status_code == 200, response.text
    CHECKS[REQUESTS[name]["path"].partition("?")[0]](response.json(), "tools" in REQUESTS[name]["body"])


def check_message(answer: dict, tools: bool) -> None:
    assert {"id", "model", "role", "stop_reason", "stop_sequence", "usage"} <= answer.keys()
    assert answer["type"] == "message" and answer["stop_reason"] in ("end_turn", "tool_use", "max_tokens")
    kinds = [block["type"] for block in answer["content"]]
    assert kinds in (["thinking", "text"], ["thinking", "text", "tool_use"], ["text"], ["text", "tool_use"])
    assert all(
        {"tool_use": "input", "text": "text", "thinking": "thinking"}[kind] in block.keys()
        for kind, block in zip(kinds, answer["content"], strict=True)
    )
    assert {"input_tokens", "output_tokens", "cache_read_input_tokens"} <= answer["usage"].keys()


def check_count(answer: dict, tools: bool) -> None:
    assert list(answer) == ["input_tokens"] and answer["input_tokens"] > 100


def check_response(answer: dict, tools: bool) -> None:
    found = responses.Response.model_validate(answer)
    assert found.status == "completed" and found.output_text.startswith(SAID)
    assert [item.type for item in found.output][:2] == ["reasoning", "message"]


def check_chat(answer: dict, tools: bool) -> None:
    (choice,) = chat_types.ChatCompletion.model_validate(answer).choices
    assert choice.message.content.startswith(SAID) and choice.message.role == "assistant"
    assert (choice.finish_reason == "tool_calls") == bool(choice.message.tool_calls) == tools


def check_completion(answer: dict, tools: bool) -> None:
    (choice,) = Completion.model_validate(answer).choices
    assert choice.text.startswith(THOUGHT + SAID)


CHECKS = {
    "/v1/messages": check_message,
    "/v1/messages/count_tokens": check_count,
    "/v1/responses": check_response,
    "/v1/chat/completions": check_chat,
    "/v1/completions": check_completion,
}


@pytest.mark.parametrize("name", sorted(DONE - {"messages-count-tokens"}))
def test_a_stream(ask, name):
    """Its parts have their shape, and add up to the whole answer."""
    whole, response = ask(name).json(), ask(name, stream=True)
    STREAMS[REQUESTS[name]["path"].partition("?")[0]](whole, response)


def stream_of_message(whole: dict, response) -> None:
    begun, *parts, delta, end = events_of(response)
    assert (begun["type"], delta["type"], end["type"]) == ("message_start", "message_delta", "message_stop")
    assert begun["message"]["usage"]["input_tokens"] > 0 and delta["usage"] == whole["usage"]
    assert delta["delta"] == {name: whole[name] for name in ("stop_reason", "stop_sequence")}
    blocks = [part["content_block"] for part in parts if part["type"] == "content_block_start"]
    texts = [""] * len(blocks)
    for part in parts:
        if part["type"] == "content_block_delta":
            texts[part["index"]] += next(value for name, value in part["delta"].items() if name != "type")
    for block, text, wanted in zip(blocks, texts, whole["content"], strict=True):
        found = json.loads(text) if block["type"] == "tool_use" else text
        assert found == wanted[{"tool_use": "input"}.get(block["type"], block["type"])]


def stream_of_response(whole: dict, response) -> None:
    found = [EVENT.validate_python(event) for event in events_of(response)]
    assert [event.sequence_number for event in found] == list(range(len(found)))
    text = "".join(event.delta for event in found if event.type == "response.output_text.delta")
    assert text.startswith(SAID) and found[-1].type == "response.completed"
    kinds = [[item["type"] for item in answer["output"]] for answer in (found[-1].response.model_dump(), whole)]
    assert kinds[0] == kinds[1]


def stream_of_chat(whole: dict, response) -> None:
    chunks = [chat_types.ChatCompletionChunk.model_validate(event) for event in events(response)]
    choices = [choice for chunk in chunks for choice in chunk.choices]
    message = whole["choices"][0]["message"]
    assert "".join(choice.delta.content or "" for choice in choices) == message["content"]
    calls = [call.function.name for choice in choices for call in choice.delta.tool_calls or ()]
    assert calls == [call["function"]["name"] for call in message.get("tool_calls", ())]
    assert choices[-1].finish_reason == whole["choices"][0]["finish_reason"] and chunks[-1].usage.total_tokens > 0


def stream_of_completion(whole: dict, response) -> None:
    chunks = [Completion.model_validate({**event, "choices": []}) for event in events(response)]
    text = "".join(choice["text"] for event in events(response) for choice in event["choices"])
    assert chunks and text == whole["choices"][0]["text"]


STREAMS = {
    "/v1/messages": stream_of_message,
    "/v1/responses": stream_of_response,
    "/v1/chat/completions": stream_of_chat,
    "/v1/completions": stream_of_completion,
}


@pytest.mark.parametrize("name", sorted(REQUESTS.keys() - DONE))
def test_what_cannot_be_done_is_refused_by_name(ask, engine, name):
    for stream in (False, True):
        response = ask(name, stream=stream)
        error = response.json()["error"]
        assert response.status_code == 400 and error["message"].startswith(REQUESTS[name]["refused"]), response.text
        assert error["type"] == "invalid_request_error" and "\n" not in error["message"]
        assert (response.json().get("type") == "error") == name.startswith("messages")
    assert not engine.jobs
