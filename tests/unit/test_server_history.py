"""The messages of a request as chat templates take them, and those that are refused."""

import pytest

from tests.unit.request_bodies import HELLO, chat
from vkprefill.server.api_error import ApiError


def prepared(messages: list) -> list:
    return chat(messages=messages).conversation.messages


def test_messages_as_templates_take_them():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    found = prepared(
        [
            {"role": "developer", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]},
            {"role": "user", "content": "Hi", "name": "me"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "2"},
            {"role": "assistant", "content": "Two.", "reasoning_content": "1 + 1"},
        ]
    )
    assert found[0] == {"role": "system", "content": "Be brief."}
    assert found[2]["content"] == "" and found[2]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert found[4]["reasoning_content"] == "1 + 1"


@pytest.mark.parametrize("role", ["user", "tool", "system", "assistant"])
def test_null_content_is_empty(role):
    assert prepared([{"role": role, "content": None}, *HELLO])[0] == {"role": role, "content": ""}


@pytest.mark.parametrize("text", ['{"a": ', "[1]", "5", "not JSON", '{"a": NaN}', '{"a": 1e999}'])
def test_broken_arguments_in_the_history_stay_text(text):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": text}}
    found = prepared([*HELLO, {"role": "assistant", "tool_calls": [call]}])
    assert found[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"arguments": text}}


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("hi", "messages[0]: found 'hi', wanted an object"),
        ({"content": "x"}, "messages[0].role: missing, wanted system or developer or user"),
        ({"role": "king", "content": "x"}, "messages[0].role: found 'king'"),
        ({"role": "user"}, "messages[0].content: missing"),
        ({"role": "user", "content": 5}, "messages[0].content: found 5, wanted text or a list of text parts"),
        (
            {"role": "user", "content": [{"type": "image_url", "text": ""}]},
            "messages[0].content[0].type: found 'image_url', wanted text: only parts of type text",
        ),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]: found 'x'"),
        ({"role": "assistant", "tool_calls": {}}, "messages[0].tool_calls: found an object"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[0].tool_calls[0].function: missing, wanted an object"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": []}}]},
            "messages[0].tool_calls[0].function.arguments: found a list, wanted text or an object",
        ),
        ({"role": "assistant", "content": "x", "reasoning_content": 1}, "messages[0].reasoning_content: found 1"),
    ],
)
def test_refused_messages(message, text):
    with pytest.raises(ApiError) as refused:
        prepared([message])
    assert refused.value.message.startswith(text) and text.startswith(refused.value.param)
