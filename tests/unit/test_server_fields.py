"""Fields that would change the answer: done, or refused by their name."""

import pytest

from tests.unit.request_bodies import HELLO, chat, completion
from vkprefill.server.api_error import ApiError
from vkprefill.server.protocol.requests import Defaults, parse_chat
from vkprefill.server.protocol.tables import NEUTRAL, NEUTRAL_IN_CHAT


def anything_but(values: tuple[object, ...]) -> list[object]:
    """Values of every JSON type that ask for something."""
    some = [True, False, 0, 1, 2, -0.5, "word", "", ["x"], {"x": 1}, [], {}]
    return [v for v in some if not any(v == one and isinstance(v, bool) == isinstance(one, bool) for one in values)]


@pytest.mark.parametrize("name", [*NEUTRAL, *NEUTRAL_IN_CHAT])
def test_what_is_not_done_is_refused_and_neutral_values_pass(name):
    values = {**NEUTRAL, **NEUTRAL_IN_CHAT}[name]
    for value in (None, *values):
        assert chat(**{name: value}) == chat()
    for value in anything_but(values):
        with pytest.raises(ApiError, match=f"^{name}: found .*, which is not supported") as refused:
            chat(**{name: value})
        assert refused.value.status == 400 and refused.value.param == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("typical_p", 0.9),
        ("dry_multiplier", 0.8),
        ("xtc_probability", 0.5),
        ("mirostat", 2),
        ("samplers", ["top_k"]),
        ("guided_json", {"type": "object"}),
        ("guided_regex", "a+"),
        ("structured_outputs", {"json": {}}),
        ("documents", [{}]),
        ("chat_template", "{{ x }}"),
    ],
)
def test_refused_in_chat(name, value):
    with pytest.raises(ApiError, match=f"^{name}: ") as refused:
        chat(**{name: value})
    assert refused.value.param == name


@pytest.mark.parametrize("name", ["steer", "control_vectors"])
def test_a_server_is_steered_by_its_own_files_only(name, tmp_path, monkeypatch):
    """A request that names one is told so, and nothing is opened."""
    monkeypatch.setattr("builtins.open", lambda *_, **__: pytest.fail("a file was opened"))
    for value in (f"{tmp_path}/happy.gguf:1", [f"{tmp_path}/happy.gguf:1"]):
        with pytest.raises(ApiError, match=f"^{name}: found .* not supported; a server is steered by the files of its"):
            chat(**{name: value})


@pytest.mark.parametrize("name", NEUTRAL)
def test_completions_refuse_the_same(name):
    with pytest.raises(ApiError, match=f"^{name}: found a list, which is not supported"):
        completion(**{name: ["x"]})


def test_reasoning_format():
    assert chat(reasoning_format="auto") == chat(reasoning_format="deepseek") == chat()
    assert not chat(reasoning_format="none").split_reasoning
    with pytest.raises(ApiError, match="reasoning_format: found 'deepseek-legacy', wanted auto or deepseek or none"):
        chat(reasoning_format="deepseek-legacy")


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, None),
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "low"}, True),
        ({"enable_thinking": False}, False),
        ({"enable_thinking": True}, True),
        ({"enable_thinking": "false"}, False),
        ({"chat_template_kwargs": {"enable_thinking": "false"}}, False),
        ({"chat_template_kwargs": {"enable_thinking": "True"}}, True),
        ({"chat_template_kwargs": {"enable_thinking": 0}}, False),
        ({"chat_template_kwargs": {"enable_thinking": 1}}, True),
        ({"chat_template_kwargs": {"enable_thinking": None}}, None),
        ({"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"}, True),
        ({"enable_thinking": False, "reasoning_effort": "high"}, False),
    ],
)
def test_ways_to_switch_thinking(fields, thinking):
    found = chat(**fields).conversation.template_kwargs.get("enable_thinking")
    assert found is thinking
    served = parse_chat({"messages": HELLO, **fields}, Defaults(template_kwargs={"enable_thinking": False}))
    assert served.conversation.template_kwargs["enable_thinking"] is (thinking or False), "the request's comes first"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"enable_thinking": "no"}, "enable_thinking: found 'no', wanted true or false"),
        ({"enable_thinking": 2}, "enable_thinking: found 2"),
        ({"reasoning_effort": "much"}, "reasoning_effort: found 'much', wanted none or minimal"),
        ({"chat_template_kwargs": {"enable_thinking": "off"}}, "chat_template_kwargs.enable_thinking: found 'off'"),
        ({"chat_template_kwargs": {"enable_thinking": []}}, "chat_template_kwargs.enable_thinking: found a list"),
    ],
)
def test_switches_of_thinking_that_say_nothing(fields, message):
    with pytest.raises(ApiError) as refused:
        chat(**fields)
    assert refused.value.message.startswith(message) and message.startswith(refused.value.param)


BEGUN = [*HELLO, {"role": "assistant", "content": "Hel"}]
CALLED = [*HELLO, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]


@pytest.mark.parametrize(
    ("messages", "fields", "prompt", "continued"),
    [
        (HELLO, {}, True, False),
        (HELLO, {"add_generation_prompt": False}, False, False),
        (HELLO, {"continue_final_message": False}, True, False),
        (BEGUN, {}, False, True),
        (BEGUN, {"continue_final_message": True}, False, True),
        (BEGUN, {"continue_final_message": True, "add_generation_prompt": False}, False, True),
        (BEGUN, {"continue_final_message": False}, True, False),
        (BEGUN, {"add_generation_prompt": True}, True, False),
        (BEGUN, {"add_generation_prompt": False}, False, False),
        (CALLED, {}, True, False),
    ],
)
def test_whether_the_last_message_goes_on(messages, fields, prompt, continued):
    found = chat(messages=messages, **fields).conversation
    assert (found.generation_prompt, found.continued, len(found.messages)) == (prompt, continued, len(messages))


def test_an_empty_last_message_is_an_answer_not_begun():
    for fields in ({}, {"continue_final_message": True}):
        assert chat(messages=[*HELLO, {"role": "assistant", "content": None}], **fields) == chat()


@pytest.mark.parametrize(
    ("messages", "more", "message"),
    [
        (BEGUN, {"add_generation_prompt": True}, "found true beside add_generation_prompt: true"),
        (HELLO, {}, "found true, but the last message is no text of the assistant"),
        (CALLED, {}, "found true, but the last message is no text of the assistant"),
    ],
)
def test_what_cannot_go_on(messages, more, message):
    with pytest.raises(ApiError) as refused:
        chat(messages=messages, continue_final_message=True, **more)
    assert refused.value.message.startswith(f"continue_final_message: {message}")
