"""Bodies of requests: what is taken, what is refused, and how the refusal reads. No server, no model."""

import json

import pytest

from vkprefill import SamplingConfig, SpecPrefillConfig
from vkprefill.server.api_error import ApiError
from vkprefill.server.protocol.fields import parse_json
from vkprefill.server.protocol.messages import check_messages, check_tools
from vkprefill.server.protocol.requests import Defaults, parse_chat, parse_completion, parse_specprefill

HELLO = [{"role": "user", "content": "Hello"}]
BASE = SpecPrefillConfig(min_tokens=8192)
DEFAULTS = Defaults(spec=BASE)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def chat(**fields: object):
    return parse_chat({"messages": HELLO, **fields}, DEFAULTS)


def completion(**fields: object):
    return parse_completion({"prompt": "Hello", **fields}, DEFAULTS)


def test_defaults():
    request = chat()
    assert request.messages == HELLO and request.tools is None and request.sampling == SamplingConfig()
    assert (request.max_tokens, request.stop, request.stream, request.num_logprobs) == (None, (), False, None)
    assert request.specprefill.enabled and request.specprefill.settings == BASE


def test_fields_of_clients_that_are_not_known_here():
    assert (
        chat(user="me", store=True, metadata={}, parallel_tool_calls=True, cache_prompt=True, x=[1]).messages == HELLO
    )


def test_null_is_as_missing():
    names = [
        "temperature",
        "top_p",
        "seed",
        "stop",
        "max_tokens",
        "tools",
        "logprobs",
        "n",
        "response_format",
        "specprefill",
        "stream_options",
    ]
    assert chat(**dict.fromkeys(names)) == chat()


@pytest.mark.parametrize(
    ("fields", "most", "found"),
    [
        ({"max_tokens": 5}, None, 5),
        ({"max_tokens": 5, "max_completion_tokens": 7}, None, 7),
        ({"n_predict": 3}, None, 3),
        ({"n_predict": -1}, None, None),
        ({"max_tokens": 50}, 8, 8),
        ({"max_tokens": -1}, 8, 8),
        ({}, 8, 8),
    ],
)
def test_max_tokens(fields, most, found):
    assert parse_chat({"messages": HELLO, **fields}, Defaults(max_tokens=most)).max_tokens == found


def test_sampling_over_the_servers_own():
    defaults = Defaults(sampling=SamplingConfig(temperature=0.5, seed=3))
    found = parse_chat({"messages": HELLO, "temperature": 0, "top_k": 4, "seed": -1}, defaults).sampling
    assert found == SamplingConfig(temperature=0, top_k=4, seed=None)


def test_stop():
    assert chat(stop="a").stop == ("a",) and chat(stop=["a", "b"]).stop == ("a", "b") and chat(stop=[]).stop == ()


def test_logprobs():
    assert chat(logprobs=True).num_logprobs == 0 and chat(logprobs=True, top_logprobs=3).num_logprobs == 3
    assert chat(n_probs=2).num_logprobs == 2 and chat(n_probs=0).num_logprobs is None
    assert completion(logprobs=4).num_logprobs == 4 and completion(logprobs=False).num_logprobs is None


@pytest.mark.parametrize("prompt", ["text", [1, 2, 3], ["text"], [[1, 2]]])
def test_prompts(prompt):
    assert completion(prompt=prompt).prompt in ("text", [1, 2, 3], [1, 2])


def test_tool_choice_none_leaves_the_tools_out():
    assert (
        chat(tools=[TOOL]).tools == [TOOL]
        and chat(tools=[TOOL], tool_choice="none").tools is None
        and chat(tools=[]).tools is None
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": "hot"}, "temperature: found hot, wanted a number"),
        ({"temperature": True}, "temperature: found True, wanted a number"),
        ({"temperature": 101}, "temperature: found 101, wanted a number from 0 to 100"),
        ({"top_k": 1.5}, "top_k: found 1.5, wanted a whole number"),
        ({"seed": 2**64}, "seed: found"),
        ({"max_tokens": 0}, "max_tokens: found 0, wanted at least 1"),
        ({"max_tokens": 2**31}, "max_tokens: found 2147483648"),
        ({"max_tokens": "5"}, "max_tokens: found 5, wanted a whole number"),
        ({"stream": 1}, "stream: found 1, wanted true or false"),
        ({"stop": ""}, "stop: found nothing, wanted text"),
        ({"stop": [1]}, "stop: found a list"),
        ({"stop": ["x"] * 17}, "stop: found a list, wanted text or up to 16"),
        ({"n": 2}, "n: found 2, which is not supported"),
        ({"n": True}, "n: found True"),
        ({"frequency_penalty": 0.5}, "frequency_penalty: found 0.5, which is not supported"),
        ({"logit_bias": {"5": 1}}, "logit_bias: found an object"),
        ({"grammar": "root ::= x"}, "grammar: found root ::= x"),
        ({"functions": [{}]}, "functions: found a list, which is not supported; use tools"),
        ({"response_format": {"type": "json_object"}}, "response_format: found type json_object"),
        ({"response_format": "json"}, "response_format: found json, wanted an object"),
        ({"tools": {}}, "tools: found an object, wanted a list"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]: wanted"),
        ({"tool_choice": "required", "tools": [TOOL]}, "tool_choice: found required, wanted auto or none"),
        ({"top_logprobs": 2}, "top_logprobs: wanted only with logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs: found 21, wanted 0 to 20"),
        ({"chat_template_kwargs": {"messages": []}}, "chat template variable 'messages': cannot be set here"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs: found a list, wanted an object"),
        ({"specprefill": "yes"}, "specprefill: found yes, wanted true, false or an object"),
        ({"specprefill": {"keep": 1}}, "specprefill: found setting keep, wanted some of"),
        ({"specprefill": {"keep_ratio": 30}}, "keep_ratio: found 30, wanted a number from 0 to 1"),
        ({"specprefill_keep_pct": 0}, "specprefill_keep_pct: found 0, wanted a share"),
        ({"specprefill_keep_pct": 101}, "specprefill_keep_pct: found 101"),
        ({"messages": []}, "messages: it is empty"),
        ({"messages": "hi"}, "messages: found hi, wanted a list"),
        ({"messages": None}, "messages: missing, wanted a list"),
    ],
)
def test_refused(fields, message):
    with pytest.raises(ApiError) as refused:
        chat(**fields)
    assert refused.value.status == 400 and refused.value.message.startswith(message)
    error = refused.value.body()["error"]
    assert error["type"] == "invalid_request_error" and error["message"] == refused.value.message
    assert error["param"] in (None, "specprefill", *fields) or error["param"].split("[")[0] in fields


@pytest.mark.parametrize("prompt", [None, 5, [], ["a", "b"], [1.5], [True], [[1], [2]], {}])
def test_refused_prompts(prompt):
    with pytest.raises(ApiError, match="prompt: "):
        completion(prompt=prompt)


@pytest.mark.parametrize("fields", [{"echo": True}, {"suffix": "x"}, {"best_of": 2}])
def test_refused_fields_of_completions(fields):
    with pytest.raises(ApiError, match="not supported"):
        completion(**fields)


def test_speculative_prefill_of_a_request():
    def settings(**fields: object) -> SpecPrefillConfig:
        return chat(**fields).specprefill.settings

    assert chat(specprefill=False).specprefill.enabled is False and chat(specprefill=True).specprefill.enabled
    assert (
        settings(specprefill={"min_tokens": 5}).min_tokens == 5
        and settings(specprefill={"lookahead": 2}).min_tokens == 8192
    )
    for name in ("specprefill_keep_pct", "speculative_prefill_keep_pct"):
        for value, share in ((0.2, 0.2), (20, 0.2), (1, 1.0), (100, 1.0)):
            found = settings(**{name: value})
            assert (found.keep_ratio, found.select_mode) == (share, "chunk")
    found = chat(specprefill={"kept_ranges": [[0, 4]], "chunk_size": 8}).specprefill
    assert found.kept_ranges == [[0, 4]] and found.settings.chunk_size == 8


def test_settings_are_checked_without_a_draft_too():
    assert parse_specprefill({"specprefill": {"lookahead": 2}}, None).settings is None
    with pytest.raises(ApiError, match="lookahead"):
        parse_specprefill({"specprefill": {"lookahead": -2}}, None)


def test_messages_as_templates_take_them():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    found = check_messages(
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


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("hi", "messages[0]: found text, wanted an object"),
        ({"content": "x"}, "messages[0].role: found null, wanted one of system"),
        ({"role": "king", "content": "x"}, "messages[0].role: found king"),
        ({"role": "user"}, "messages[0].content: missing"),
        ({"role": "user", "content": 5}, "messages[0].content: found 5"),
        (
            {"role": "user", "content": [{"type": "image_url"}]},
            "messages[0].content[0]: found image_url, only parts of type text",
        ),
        ({"role": "user", "content": ["x"]}, "messages[0].content[0]: found x"),
        ({"role": "assistant", "tool_calls": {}}, "messages[0].tool_calls: found an object"),
        ({"role": "assistant", "tool_calls": [{}]}, "messages[0].tool_calls[0]: wanted an object"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]},
            "messages[0].tool_calls[0].function.arguments: not JSON",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[]"}}]},
            "messages[0].tool_calls[0].function.arguments: found a list",
        ),
        ({"role": "assistant", "content": "x", "reasoning_content": 1}, "messages[0].reasoning_content: found 1"),
    ],
)
def test_refused_messages(message, text):
    with pytest.raises(ApiError) as refused:
        check_messages([message])
    assert refused.value.message.startswith(text)


def test_tools():
    assert check_tools(None) is None and check_tools([TOOL]) == [TOOL]
    with pytest.raises(ApiError, match="parameters: found a list"):
        check_tools([{"function": {"name": "f", "parameters": []}}])


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "body: not JSON"),
        (b"{", "body: not JSON"),
        (b"[1]", "body: found a list, wanted an object"),
        (b"null", "body: found null"),
        (b'{"a": NaN}', "body: not JSON: NaN"),
        (b'{"a": "\xff"}', "body: byte 7 is not UTF-8"),
        (b'{"a": ' + b"9" * 5000 + b"}", "body: not JSON"),
        (b"[" * 100_000, "body: not JSON"),
    ],
)
def test_bodies(raw, message):
    with pytest.raises(ApiError) as refused:
        parse_json(raw)
    assert refused.value.status == 400 and refused.value.message.startswith(message)
    json.dumps(refused.value.body())
