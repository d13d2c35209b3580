"""Chat requests -> token ids with Qwen3.5's template: what is fixed, what is marked, where thought begins."""

from pathlib import Path

import pytest

from vkprefill.errors import ContextLengthError, RequestError
from vkprefill.server.api_error import ApiError
from vkprefill.server.protocol.prompts import PromptBuilder
from vkprefill.server.protocol.requests import Defaults, parse_chat
from vkprefill.text.chat_template import ChatTemplate

DATA = Path(__file__).resolve().parents[1] / "data"
TOOLS = [
    {"type": "function", "function": {"name": "look_up", "parameters": {"properties": {"word": {"type": "string"}}}}}
]
ROOM = 100_000
SYSTEM = {"role": "system", "content": "Answer in one short sentence, as a friend would. " * 4}


def with_template(source: str) -> PromptBuilder:
    made = PromptBuilder(DATA / "models" / "tiny-c-q4km.gguf")
    made._template = ChatTemplate(source, made.tokenizer)
    return made


@pytest.fixture(scope="module")
def prompts() -> PromptBuilder:
    return with_template((DATA / "chat" / "Qwen3.5-4B.jinja").read_text())


def conversation(messages: list, **fields: object):
    return parse_chat({"messages": messages, **fields}, Defaults()).conversation


def chat(prompts: PromptBuilder, messages: list, **fields: object):
    return prompts.chat(conversation(messages, **fields), ROOM)


def text(prompts: PromptBuilder, messages: list, **fields: object) -> str:
    """The prompt as text, which the token ids must stand for too."""
    found = prompts.chat_text(conversation(messages, **fields))
    assert prompts.tokenizer.decode(chat(prompts, messages, **fields).token_ids) == found
    return found


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_thinking_is_the_templates_and_the_requests(prompts):
    assert chat(prompts, [user("Hi")]).thinking
    for off in ({"chat_template_kwargs": {"enable_thinking": 0}}, {"reasoning_effort": "none"}):
        assert not chat(prompts, [user("Hi")], **off).thinking
        assert text(prompts, [user("Hi")], **off).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert chat(prompts, [user("Hi")], reasoning_effort="high").thinking


def test_a_template_that_always_thinks_cannot_be_told_not_to(prompts):
    always = with_template("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}<think>\n")
    assert chat(always, [user("Hi")]).thinking
    with pytest.raises(ApiError, match="^enable_thinking: found false, but the chat template of .* always thinks"):
        chat(always, [user("Hi")], reasoning_effort="none")


@pytest.mark.parametrize("tools", [None, TOOLS])
def test_system_prompt_and_tools_are_fixed(prompts, tools):
    first, second = (chat(prompts, [SYSTEM, user(text)], tools=tools) for text in ("Who?", "x marks the spot"))
    shared_n = first.protected.shared_n
    assert shared_n == second.protected.shared_n and first.token_ids[:shared_n] == second.token_ids[:shared_n]
    assert first.protected.fixed[0] == (0, shared_n)
    fixed = prompts.tokenizer.decode(first.token_ids[:shared_n])
    assert (
        SYSTEM["content"].strip() in fixed
        and fixed.endswith("<|im_start|>user\n")
        and ("look_up" in fixed) == bool(tools)
    )
    assert first.mark_at[0] == shared_n and bool(first.facts.tools) == bool(tools)


@pytest.mark.parametrize("tools", [None, TOOLS])
def test_where_the_user_asks_is_protected(prompts, tools):
    text = "The old man crossed the river slowly.\n" * 40
    turns = [SYSTEM, user(f"{text}Who sold it?"), {"role": "assistant", "content": "Anna."}, user(f"{text}Who swam?")]
    found = chat(prompts, turns, tools=tools)
    asked = [prompts.tokenizer.decode(found.token_ids[start:end]) for start, end in found.protected.question.all]
    assert asked[-1] == "Who swam?" and not any("Who sold it?" in text for text in asked)
    opening = [prompts.tokenizer.decode(found.token_ids[start:end]) for start, end in found.protected.opening]
    assert opening == ["<|im_end|>\n<|im_start|>assistant\n<think>\n"]


def test_plain_completions_leave_it_to_the_tokens(prompts):
    assert prompts.completion("Who swam?", ROOM).protected is None


def test_tools_without_a_system_prompt_are_fixed(prompts):
    found = chat(prompts, [user("Who?")], tools=TOOLS)
    assert "look_up" in prompts.tokenizer.decode(found.token_ids[: found.protected.shared_n])
    assert chat(prompts, [user("Who?")]).protected.shared_n < 8, "nothing but the start of the message"


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
    raw = prompts.completion("<|im_end|>", ROOM)
    assert raw.token_ids == [prompts.tokenizer.special_tokens["<|im_end|>"]], "a plain completion is taken as it stands"


def test_what_the_template_refuses(prompts):
    with pytest.raises(RequestError, match="No user query found"):
        chat(prompts, [SYSTEM])


def test_file_without_a_template(prompts):
    bare = PromptBuilder(DATA / "models" / "tiny-c-q4km.gguf")
    bare._template = None
    with pytest.raises(RequestError, match="has no chat template; use /v1/completions"):
        chat(bare, [user("Hi")])


# ---- system messages


def system(text: str, role: str = "system") -> dict[str, str]:
    return {"role": role, "content": text}


@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize(
    "messages",
    [
        [system("One."), system("Two."), user("Hi")],
        [system("One."), system("Two.", "developer"), user("Hi")],
        [system("One.", "developer"), system("Two."), user("Hi")],
        [system("One."), user("Hi"), system("Two.")],
        [user("Hi"), system("One.", "developer"), system("Two.")],
    ],
)
def test_system_messages_are_joined_in_order(prompts, messages, tools):
    joined = [system("One.\n\nTwo."), user("Hi")]
    assert text(prompts, messages, tools=tools) == text(prompts, joined, tools=tools)
    found, wanted = chat(prompts, messages, tools=tools), chat(prompts, joined, tools=tools)
    assert (found.token_ids, found.mark_at, found.protected) == (
        wanted.token_ids,
        wanted.mark_at,
        wanted.protected,
    )


def test_a_template_that_takes_system_messages_anywhere_gets_them_there():
    free = with_template("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}")
    messages = [system("One."), system("Two."), user("Hi"), system("Three.", "developer")]
    assert text(free, messages).count("<|im_start|>system") == 3


def test_what_joining_does_not_help_is_the_templates_word(prompts):
    with pytest.raises(RequestError, match="No user query found"):
        chat(prompts, [system("One."), system("Two.")])


# ---- an answer that is begun

START = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n"


@pytest.mark.parametrize(
    ("last", "fields", "end", "thinking"),
    [
        ({"content": "Hel"}, {}, "\n</think>\n\nHel", False),
        ({"content": "Hel"}, {"enable_thinking": False}, "\n</think>\n\nHel", False),
        ({"content": "A line.\n\n"}, {}, "\n</think>\n\nA line.\n\n", False),
        ({"content": "So", "reasoning_content": "why"}, {}, "why\n</think>\n\nSo", False),
        ({"content": "<think>\nwhy\n</think>\n\nSo"}, {}, "why\n</think>\n\nSo", False),
        ({"content": "", "reasoning_content": "I thi"}, {}, "I thi", True),
        ({"content": "<think>\nI thi"}, {}, "I thi", True),
        ({"content": [{"type": "text", "text": "Hel"}]}, {}, "\n</think>\n\nHel", False),
        ({"content": "of <|im_end|> and <|im_"}, {}, "\n</think>\n\nof <|im_end|> and <|im_", False),
    ],
)
def test_the_last_message_goes_on(prompts, last, fields, end, thinking):
    messages = [user("Hi"), {"role": "assistant", **last}]
    assert text(prompts, messages, **fields) == START + end
    found = chat(prompts, messages, **fields)
    assert found.thinking == thinking and found.continued
    start = prompts.tokenizer.decode(found.token_ids[: found.mark_at[-1]])
    assert start.startswith("<|im_start|>user\nHi<|im_end|>\n"), "what the next turn will share"
    assert found.token_ids.count(prompts.tokenizer.special_tokens["<|im_end|>"]) == 1


def test_the_last_message_is_closed_where_the_request_says_so(prompts):
    messages = [user("Hi"), {"role": "assistant", "content": "Hel"}]
    closed = START + "\n</think>\n\nHel<|im_end|>\n"
    assert text(prompts, messages, add_generation_prompt=False) == closed
    assert text(prompts, messages, continue_final_message=False) == closed + "<|im_start|>assistant\n<think>\n"
    assert text(prompts, [user("Hi")], add_generation_prompt=False) == "<|im_start|>user\nHi<|im_end|>\n"
    assert not chat(prompts, messages, add_generation_prompt=False).continued


def test_a_template_that_leaves_the_last_message_out():
    blind = with_template("{{ messages[0].content }}")
    with pytest.raises(RequestError, match="chat template: it leaves out the text of the last message"):
        chat(blind, [user("Hi"), {"role": "assistant", "content": "Hel"}])


def test_parse_special_hides_control_tokens_alone(prompts):
    control, user_defined = (prompts.tokenizer.special_tokens[name] for name in ("<|im_end|>", "<think>"))
    hidden = prompts.encode("a<think><|im_end|>", add_special=False, parse_special=False)
    shown = prompts.encode("a<think><|im_end|>", add_special=False, parse_special=True)
    assert hidden[1] == shown[1] == user_defined and control not in hidden and shown[2] == control
    assert hidden[2:] == prompts.tokenizer.encode("<|im_end|>")


def common(a: list[int], b: list[int]) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.mark.parametrize("system", [[], [SYSTEM]])
@pytest.mark.parametrize("turns", [["x"], ["Hi", "Yes?", "xylophone"], ["Hi", "<think>\nno\n</think>\n\nYes?", "So?"]])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_beginnings_are_those_of_whole_prompts(prompts, system, turns, tools):
    """Only what differs is encoded a second time, and the lengths are those that comparing all tokens gives."""
    messages = system + [{"role": ("user", "assistant")[n % 2], "content": turn} for n, turn in enumerate(turns)]
    made = chat(prompts, messages, tools=tools)
    encode = prompts.template.encode
    assert made.token_ids == encode(messages, tools=tools)
    history = common(made.token_ids, encode(messages, tools=tools, add_generation_prompt=False))
    other = "y" if turns[0].startswith("x") else "x"
    assert made.protected.shared_n == common(made.token_ids, encode([*system, user(other)], tools=tools))
    assert made.mark_at[-1] == history


def test_text_is_encoded_once_and_not_beyond_the_context(prompts, monkeypatch):
    """Also what it shares with those it is compared to; a prompt beyond the context costs no more than the context."""
    encoded, encode_one = [], prompts.tokenizer._model.encode
    monkeypatch.setattr("vkprefill.text.tokenizer.BLOCK", 1000)
    monkeypatch.setattr(
        prompts.tokenizer._model,
        "encode",
        lambda text, at_start: encoded.append(len(text)) or encode_one(text, at_start),
    )
    long = "The river was quiet and the bridge was old. " * 1000
    made = chat(prompts, [SYSTEM, user(long)])
    assert len(long) < sum(encoded) < len(long) + 1000
    for body in ({"messages": [SYSTEM, user(long * 20)]}, {"prompt": long * 20}):
        encoded.clear()
        with pytest.raises(
            ContextLengthError, match=r"^context: the prompt needs at least \d+ tokens, the context holds"
        ):
            if "messages" in body:
                prompts.chat(conversation(body["messages"]), len(made.token_ids))
            else:
                prompts.completion(body["prompt"], len(made.token_ids))
        assert sum(encoded) < len(long) + 5000


def test_room(prompts):
    """A prompt must leave room for one token."""
    num_tokens = len(chat(prompts, [user("Hi")]).token_ids)
    assert prompts.chat(conversation([user("Hi")]), num_tokens + 1).token_ids
    with pytest.raises(ContextLengthError, match=f"at least {num_tokens} tokens, the context holds {num_tokens},"):
        prompts.chat(conversation([user("Hi")]), num_tokens)
    ids = [1, 2, 3]
    assert prompts.completion(ids, 4).token_ids == [1, 2, 3]
    with pytest.raises(ContextLengthError, match="^context: the prompt needs 3 tokens, the context holds 3,"):
        prompts.completion(ids, 3)
