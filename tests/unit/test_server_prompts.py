"""Chat requests -> token ids with Qwen3.5's template: what is fixed, what is marked, where thought begins."""

from pathlib import Path

import pytest

from vkprefill.errors import RequestError
from vkprefill.server.protocol.prompts import PromptBuilder
from vkprefill.server.protocol.requests import Defaults, parse_chat, parse_completion
from vkprefill.text.chat_template import ChatTemplate

DATA = Path(__file__).resolve().parents[1] / "data"
TOOLS = [
    {"type": "function", "function": {"name": "look_up", "parameters": {"properties": {"word": {"type": "string"}}}}}
]
SYSTEM = {"role": "system", "content": "Answer in one short sentence, as a friend would. " * 4}


@pytest.fixture(scope="module")
def prompts() -> PromptBuilder:
    made = PromptBuilder(DATA / "models" / "tiny-c-q4km.gguf")
    made._template = ChatTemplate((DATA / "chat" / "Qwen3.5-4B.jinja").read_text(), made.tokenizer)
    return made


def chat(prompts: PromptBuilder, messages: list, **fields: object):
    return prompts.chat(parse_chat({"messages": messages, **fields}, Defaults()))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_thinking_is_the_templates_and_the_requests(prompts):
    assert chat(prompts, [user("Hi")]).thinking
    assert not chat(prompts, [user("Hi")], chat_template_kwargs={"enable_thinking": False}).thinking


@pytest.mark.parametrize("tools", [None, TOOLS])
def test_system_prompt_and_tools_are_fixed(prompts, tools):
    first, second = (chat(prompts, [SYSTEM, user(text)], tools=tools) for text in ("Who?", "x marks the spot"))
    assert first.fixed_n == second.fixed_n and first.token_ids[: first.fixed_n] == second.token_ids[: first.fixed_n]
    fixed = prompts.tokenizer.decode(first.token_ids[: first.fixed_n])
    assert (
        SYSTEM["content"].strip() in fixed
        and fixed.endswith("<|im_start|>user\n")
        and ("look_up" in fixed) == bool(tools)
    )
    assert first.mark_at[0] == first.fixed_n and bool(first.facts.tools) == bool(tools)


def test_tools_without_a_system_prompt_are_fixed(prompts):
    found = chat(prompts, [user("Who?")], tools=TOOLS)
    assert "look_up" in prompts.tokenizer.decode(found.token_ids[: found.fixed_n])
    assert chat(prompts, [user("Who?")]).fixed_n < 8, "nothing but the start of the message"


def test_the_history_is_a_beginning_of_the_next_turn(prompts):
    """Thought, a call of a tool, and a further question, for which the template drops the thoughts before it."""
    call = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": '{"word": "pigeon"}'}}
    messages = [SYSTEM, user("What is a pigeon?")]
    first = chat(prompts, messages, tools=TOOLS)
    end = first.mark_at[-1]
    assert prompts.tokenizer.decode(first.token_ids[end:]) == "<|im_start|>assistant\n<think>\n"
    messages += [
        {"role": "assistant", "content": "", "reasoning_content": "I look it up.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "A bird."},
    ]
    second = chat(prompts, messages, tools=TOOLS)
    messages += [{"role": "assistant", "content": "A bird.", "reasoning_content": "Clear."}, user("And a swan?")]
    third = chat(prompts, messages, tools=TOOLS)
    for later in (second, third):
        assert later.token_ids[:end] == first.token_ids[:end] and later.mark_at[-1] > end
        assert "<function=look_up>\n<parameter=word>\npigeon" in prompts.tokenizer.decode(later.token_ids)
    assert "I look it up." in prompts.tokenizer.decode(second.token_ids)
    assert "I look it up." not in prompts.tokenizer.decode(third.token_ids)
    assert third.facts.roles == ("system", "user", "assistant", "tool", "assistant", "user")


def test_special_tokens_in_text_stay_text(prompts):
    found = chat(prompts, [user("<|im_end|>")])
    assert found.token_ids.count(prompts.tokenizer.special_tokens["<|im_end|>"]) == 1
    raw = prompts.completion(parse_completion({"prompt": "<|im_end|>"}, Defaults()))
    assert raw.token_ids == [prompts.tokenizer.special_tokens["<|im_end|>"]], "a plain completion is taken as it stands"


def test_what_the_template_refuses(prompts):
    with pytest.raises(RequestError, match="System message must be at the beginning"):
        chat(prompts, [user("Hi"), SYSTEM])
    with pytest.raises(RequestError, match="No user query found"):
        chat(prompts, [SYSTEM])


def test_file_without_a_template(prompts):
    bare = PromptBuilder(DATA / "models" / "tiny-c-q4km.gguf")
    bare._template = None
    with pytest.raises(RequestError, match="has no chat template; use /v1/completions"):
        bare.chat(parse_chat({"messages": [user("Hi")]}, Defaults()))
