"""Bodies of requests: what is taken, what is refused, and how the refusal reads. No server, no model."""

import json
import re

import pytest

from tests.unit.request_bodies import BASE, HELLO, TOOL, chat, completion
from vkprefill import SamplingConfig
from vkprefill.server.api_error import ApiError
from vkprefill.server.protocol.fields import parse_json
from vkprefill.server.protocol.requests import Defaults, parse_chat


def test_defaults():
    request = chat()
    asked = request.conversation
    assert asked.messages == HELLO and asked.tools is None and request.sampling == SamplingConfig()
    assert asked.generation_prompt and not asked.continued and asked.template_kwargs == {} and request.split_reasoning
    assert (request.max_tokens, request.stop, request.stream, request.num_logprobs) == (None, (), False, None)
    assert request.specprefill.enabled and request.specprefill.settings == BASE


def test_fields_of_clients_that_are_not_known_here():
    assert chat(user="me", store=True, metadata={}, service_tier="auto", prompt_cache_key="k", x=[1]) == chat()
    assert chat(xtc_threshold=0.1, dry_base=1.75, mirostat_tau=5, repeat_last_n=64) == chat(), "parts of what is off"


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


@pytest.mark.parametrize(
    ("fields", "most", "found"),
    [
        ({}, None, 4096),
        ({"max_tokens": None}, None, 4096),
        ({}, 8, 8),
        ({"max_tokens": 5}, None, 5),
        ({"n_predict": 9999}, None, 9999),
        ({"max_tokens": -1}, None, None),
        ({"n_predict": -1}, 8, 8),
        ({"max_tokens": -1, "n_predict": 6}, None, 6),
    ],
)
def test_answers_without_a_limit_of_their_own(fields, most, found):
    """A default, not a bound: who asks for more gets it, and -1 is to ask for all."""
    defaults = Defaults(max_tokens=most, answer_tokens=4096)
    assert parse_chat({"messages": HELLO, **fields}, defaults).max_tokens == found


def test_sampling_over_the_servers_own():
    defaults = Defaults(sampling=SamplingConfig(temperature=0.5, seed=3))
    found = parse_chat({"messages": HELLO, "temperature": 0, "top_k": 4, "seed": -1}, defaults).sampling
    assert found == SamplingConfig(temperature=0, top_k=4, seed=None)


def test_stop():
    assert chat(stop="a").stop == ("a",) and chat(stop=["a", "b"]).stop == ("a", "b")
    assert chat(stop=[]).stop == chat(stop="").stop == chat(stop=[""]).stop == chat(stop=None).stop == ()


def test_values_that_others_take_for_off():
    assert chat(top_k=-1).sampling.top_k == 0 and chat(top_k=0).sampling.top_k == 0
    found = chat(max_tokens=5.0, top_k=4.0, seed=3.0, logprobs=True, top_logprobs=2.0)
    assert (found.max_tokens, found.sampling.top_k, found.sampling.seed, found.num_logprobs) == (5, 4, 3, 2)
    assert all(type(n) is int for n in (found.max_tokens, found.sampling.top_k, found.num_logprobs))
    assert chat(top_logprobs=0) == chat(logprobs=False) == chat(chat_template_kwargs=None) == chat()
    assert chat(specprefill={"chunk_size": 8.0}).specprefill.settings.chunk_size == 8


def test_logprobs():
    assert chat(logprobs=True).num_logprobs == 0 and chat(logprobs=True, top_logprobs=3).num_logprobs == 3
    assert chat(n_probs=2).num_logprobs == 2 and chat(n_probs=0).num_logprobs is None
    assert completion(logprobs=4).num_logprobs == 4 and completion(logprobs=False).num_logprobs is None


@pytest.mark.parametrize("prompt", ["text", [1, 2, 3], ["text"], [[1, 2]]])
def test_prompts(prompt):
    assert completion(prompt=prompt).prompts in (["text"], [[1, 2, 3]], [[1, 2]])


def test_tool_choice_none_leaves_the_tools_out():
    assert (
        chat(tools=[TOOL]).conversation.tools == [TOOL]
        and chat(tools=[TOOL], tool_choice="none").conversation.tools is None
        and chat(tools=[]).conversation.tools is None
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": "hot"}, "temperature: found 'hot', wanted a number"),
        ({"temperature": True}, "temperature: found True, wanted a number"),
        ({"temperature": 101}, "temperature: found 101, wanted a number from 0 to 100"),
        ({"top_k": 1.5}, "top_k: found 1.5, wanted a whole number"),
        ({"seed": 2**64}, "seed: found"),
        ({"max_tokens": -2}, "max_tokens: found -2, wanted -1 or a whole number from 0 to 2147483647"),
        ({"max_tokens": 2**31}, "max_tokens: found 2147483648"),
        ({"max_tokens": "5"}, "max_tokens: found '5', wanted -1 or a whole number"),
        ({"stream": 1}, "stream: found 1, wanted true or false"),
        ({"max_tokens": 5.5}, "max_tokens: found 5.5, wanted -1 or a whole number"),
        ({"max_tokens": -2}, "max_tokens: found -2"),
        ({"top_k": -2}, "top_k: found -2, wanted a whole number from -1 to 2147483647"),
        ({"stop": "x" * 1001}, "stop: found 'xxx"),
        ({"stop": [1]}, "stop[0]: found 1, wanted text of 0 to 1000 characters"),
        ({"stop": ["x"] * 17}, "stop: found 17 in it, wanted 0 to 16"),
        ({"n": 17}, "n: found 17, wanted a whole number from 1 to 16"),
        ({"n": True}, "n: found True"),
        ({"frequency_penalty": 2.5}, "frequency_penalty: found 2.5, wanted a number from -2 to 2"),
        ({"logit_bias": {"5": 101}}, "logit_bias: found 101, wanted a number from -100 to 100 or false"),
        ({"logit_bias": {"word": 1}}, "logit_bias: found 'word', wanted a whole number of at least 0"),
        ({"repetition_penalty": 1.1, "repeat_penalty": 1.1}, "repetition_penalty: found one beside repeat_penalty"),
        ({"ignore_eos": True, "json_schema": {}}, "ignore_eos: found one beside a form of the answer"),
        ({"guided_regex": "a+"}, "guided_regex: found 'a+', which is not supported; use response_format or grammar"),
        ({"functions": [{}]}, "functions: found a list, which is not supported; use tools"),
        (
            {"response_format": {"type": "xml"}},
            "response_format.type: found 'xml', wanted text or json_object or json_schema",
        ),
        ({"response_format": "json"}, "response_format: found 'json', wanted an object"),
        ({"tools": {}}, "tools: found an object, wanted a list"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type: found 'web_search', wanted function"),
        (
            {"tool_choice": "never", "tools": [TOOL]},
            "tool_choice: found 'never', wanted auto, none, required or a function",
        ),
        ({"top_logprobs": 2}, "top_logprobs: found 2, wanted only with logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs: found 21, wanted a whole number from 0 to 20"),
        ({"chat_template_kwargs": {"messages": []}}, "chat template variable 'messages': cannot be set here"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs: found a list, wanted an object"),
        ({"specprefill": "yes"}, "specprefill: found 'yes', wanted true, false or an object"),
        ({"specprefill": {"keep": 1}}, "specprefill: found setting keep, wanted some of"),
        ({"specprefill": {"keep_ratio": 30}}, "specprefill.keep_ratio: found 30, wanted a number from 0 to 1"),
        (
            {"specprefill": {"kept_ranges": [[1]]}},
            "specprefill.kept_ranges[0]: found 1 in it, wanted 2",
        ),
        ({"specprefill_keep_pct": 0}, "specprefill_keep_pct: found 0, wanted a number above 0 to 100"),
        ({"specprefill_keep_pct": 101}, "specprefill_keep_pct: found 101"),
        ({"messages": []}, "messages: it is empty, wanted at least 1"),
        ({"messages": "hi"}, "messages: found 'hi', wanted a list"),
        ({"messages": None}, "messages: missing, wanted a list"),
    ],
)
def test_refused(fields, message):
    with pytest.raises(ApiError) as refused:
        chat(**fields)
    assert (
        refused.value.status == 400 and "\n" not in refused.value.message and refused.value.message.startswith(message)
    )
    error = refused.value.body()["error"]
    assert error["type"] == "invalid_request_error" and error["message"] == refused.value.message
    assert re.split(r"[.[]", error["param"])[0] in fields and message.startswith(("chat template", error["param"]))


@pytest.mark.parametrize("prompt", [None, 5, [], ["a", 1], [1.5], [True], [[1], []], [[1], "a"], {}])
def test_refused_prompts(prompt):
    with pytest.raises(ApiError, match="prompt: "):
        completion(prompt=prompt)


@pytest.mark.parametrize("prompt", [[], ["a"] * 65, [[1]] * 65])
def test_how_many_prompts_are_wanted_is_said(prompt):
    with pytest.raises(ApiError, match="^prompt: .*a list of 1 to 64 such prompts$"):
        completion(prompt=prompt)


@pytest.mark.parametrize("fields", [{"suffix": "x"}, {"best_of": 2}])
def test_refused_fields_of_completions(fields):
    with pytest.raises(ApiError, match="not supported"):
        completion(**fields)


def test_tools():
    odd = {"function": {"name": "f", "parameters": None, "strict": None, "x": 1}}
    assert chat(tools=[TOOL, odd]).conversation.tools == [TOOL, odd], "tools are the template's as they stand"
    with pytest.raises(ApiError, match=r"tools\[0\].function.parameters: found a list"):
        chat(tools=[{"function": {"name": "f", "parameters": []}}])


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "body: not JSON"),
        (b"{", "body: not JSON"),
        (b"[1]", "body: found a list, wanted an object"),
        (b"null", "body: found null"),
        (b'{"a": NaN}', "body: not JSON: NaN"),
        (b'{"a": -1e999}', "body: not JSON: -1e999 is too large"),
        ('{"a": 1}'.encode("utf-16"), "body: byte 0 is not UTF-8"),
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


def test_a_byte_order_mark_is_passed_over():
    assert parse_json(b"\xef\xbb\xbf" + b'{"a": "\xc3\xa9"}') == {"a": "\u00e9"}
