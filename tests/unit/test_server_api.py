"""Bodies of requests: what is taken, what is refused, and how the refusal reads. No server, no model."""

import json
import re
from dataclasses import replace

import pytest

from vkprefill import SamplingConfig, SpecDecodeConfig, SpecPrefillConfig
from vkprefill.server.api_error import ApiError
from vkprefill.server.protocol.fields import parse_json
from vkprefill.server.protocol.requests import Defaults, of_setting, parse_chat, parse_completion

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


DRAFTS = SpecDecodeConfig("ngram", n_max=4, n_min=2, p_min=0.5)


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, DRAFTS),
        ({"speculative.n_max": 2, "speculative.p_min": 0}, replace(DRAFTS, n_max=2, p_min=0)),
        ({"speculative.n_max": 16.0, "speculative.n_min": 0}, replace(DRAFTS, n_max=7, n_min=0)),
        ({"speculative.n_max": 1}, replace(DRAFTS, n_max=1, n_min=1)),
        ({"speculative.n_min": 9}, replace(DRAFTS, n_min=4)),
        ({"speculative.n_max": 0, "speculative.n_min": 5}, replace(DRAFTS, type="none")),
        ({"speculative.n_max": None, "speculative": {}}, DRAFTS),
        ({"speculative.type": "none"}, replace(DRAFTS, type="none")),
        ({"speculative": {"n_max": 2, "p_min": 0, "type": None}}, replace(DRAFTS, n_max=2, p_min=0)),
        ({"speculative": {"n_max": 2}, "speculative.n_max": 3}, replace(DRAFTS, n_max=3)),
        ({"speculative": {"n_max": 2, "n_min": 1}, "speculative.n_max": 16}, replace(DRAFTS, n_max=7, n_min=1)),
        ({"speculative.n_max": 16, "speculative.n_min": 9}, replace(DRAFTS, n_max=7, n_min=7)),
        ({"speculative.types": "draft-mtp"}, replace(DRAFTS, type="draft-mtp")),
        ({"speculative": {"types": "none"}, "speculative.type": "none"}, replace(DRAFTS, type="none")),
        ({"speculative.type": "ngram,draft-mtp"}, replace(DRAFTS, type="draft-mtp,ngram")),
    ],
)
def test_drafts_over_the_servers_own(fields, found):
    """llama-server's fields; what is out of the range that can be done is brought into it, as there."""
    defaults = Defaults(decode=DRAFTS)
    assert parse_chat({"messages": HELLO, **fields}, defaults).decode == found
    assert parse_completion({"prompt": "x", **fields}, defaults).decode == found


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("n_max", -1, "found -1, wanted a whole number of at least 0"),
        ("n_max", 1.5, "found 1.5, wanted"),
        ("n_max", "3", "found '3', wanted a whole number"),
        ("n_min", "1", "found '1', wanted"),
        ("p_min", 1.1, "found 1.1, wanted a number from 0 to 1"),
        ("p_min", "half", "found 'half', wanted a number from 0 to 1"),
        ("type", "draft", "found 'draft', wanted none or auto or draft-mtp"),
        ("types", "draft", "found 'draft', wanted none or auto or draft-mtp"),
        ("n_maximum", 3, r"not known, wanted one of (speculative\.)?type, (speculative\.)?n_max, "),
        ("ngram_size_n", 3, "not known, wanted one of"),
    ],
)
def test_bad_settings_of_drafts(name, value, message):
    for fields in ({f"speculative.{name}": value}, {"speculative": {name: value}}):
        for asked in (chat, completion):
            with pytest.raises(ApiError, match=f"^speculative.{name}: {message}") as refused:
                asked(**fields)
            assert (refused.value.status, refused.value.param) == (400, f"speculative.{name}")
    with pytest.raises(ApiError, match="^speculative: found 3, wanted an object"):
        chat(speculative=3)


def test_settings_of_drafts_that_contradict_each_other():
    """Both of the request: where one is the server's, n_min is lowered."""
    for fields in (
        {"speculative.n_max": 2, "speculative.n_min": 7},
        {"speculative": {"n_max": 2, "n_min": 7}},
        {"speculative": {"n_min": 7}, "speculative.n_max": 2},
    ):
        with pytest.raises(ApiError, match="^speculative.n_min: found 7, wanted at most n_max, which is 2"):
            chat(**fields)
    with pytest.raises(ApiError, match="^speculative.types: found ngram beside type none, wanted one of them"):
        chat(**{"speculative.type": "none", "speculative.types": "ngram"})


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


@pytest.mark.parametrize("fields", [{"suffix": "x"}, {"best_of": 2}])
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
    body = {"messages": HELLO, "specprefill": {"lookahead": 2}}
    assert parse_chat(body, Defaults()).specprefill.settings == SpecPrefillConfig(lookahead=2)
    assert parse_chat({"messages": HELLO, "specprefill": True}, Defaults()).specprefill.settings is None
    with pytest.raises(ApiError, match="lookahead"):
        parse_chat({**body, "specprefill": {"lookahead": -2}}, Defaults())


@pytest.mark.parametrize("spec", [None, SpecPrefillConfig(scorer="self")])
def test_there_is_no_draft_to_score(spec):
    body = {"messages": HELLO, "specprefill": {"scorer": "draft"}}
    with pytest.raises(ApiError, match=r"^specprefill.scorer: found draft, but there is no draft model; wanted self"):
        parse_chat(body, Defaults(spec=spec))
    assert parse_chat(body, DEFAULTS).specprefill.settings.scorer == "draft"


def test_what_is_asked_of_all_requests_holds_for_those_that_switch_it_on():
    """Where speculative prefill is off, the server's settings are under those of a request that has some."""
    defaults = Defaults(own_spec=SpecPrefillConfig(check="on", min_tokens=8192))
    for asked in ({"scorer": "self", "min_tokens": 0}, {"kept_ranges": [[0, 4]], "min_tokens": 0}):
        found = parse_chat({"messages": HELLO, "specprefill": asked}, defaults).specprefill.settings
        assert (found.check, found.min_tokens) == ("on", 0)
    assert parse_chat({"messages": HELLO, "specprefill_keep_pct": 20}, defaults).specprefill.settings.keep_ratio == 0.2


@pytest.mark.parametrize(("given", "found"), [("auto", None), (None, None), (3, 3), (3.0, 3)])
def test_the_layer_that_scores(given, found):
    assert chat(specprefill={"scorer": "self", "score_layer": given}).specprefill.settings.score_layer == found


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"score_layer": "all"}, "score_layer"),
        ({"score_layer": 3.5}, "score_layer"),
        ({"score_layer": [3, 7]}, "score_layer"),
        ({"score_layer": "3,7"}, "score_layer"),
        ({"rows": "both"}, "rows"),
        ({"score_layers": [3], "score_depth": 0.5}, "score_depth"),
        ({"window": 8}, "window"),
    ],
)
def test_settings_are_refused_by_their_names(settings, name):
    with pytest.raises(ApiError, match=f"^specprefill.{name}: found") as refused:
        chat(specprefill=settings)
    assert refused.value.param == f"specprefill.{name}"


def test_what_the_engine_refuses_of_settings():
    """It knows settings by their names alone."""
    for message, param in (
        ("score_layer: found 1, wanted one of 3", "specprefill.score_layer"),
        ("check: no room for a second cache", "specprefill.check"),
        ("kept_ranges: found [5, 3]", "specprefill.kept_ranges"),
        ("scorer self: m has no full-attention layer", "specprefill.scorer"),
        ("context: the prompt needs 9 tokens", None),
    ):
        found = of_setting(ApiError(400, message))
        assert found.param == param and found.message == ("specprefill." if param else "") + message
    assert of_setting(ApiError(503, "check: no memory")).param is None


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
