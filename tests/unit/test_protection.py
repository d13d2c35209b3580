"""What of a conversation is protected, by Qwen3.5's template and by others, in the tokens of the built-in pair."""

from pathlib import Path

import pytest

import vkprefill
from vkprefill.gguf.file import open_gguf
from vkprefill.specprefill.protection import Protected, protected_of_chat, protected_of_tokens, tail_queries
from vkprefill.specprefill.questions import Requests
from vkprefill.specprefill.settings import SpecPrefillConfig
from vkprefill.text.chat_template import ChatTemplate
from vkprefill.text.rendered import Rendered
from vkprefill.text.tokenizer import Tokenizer

DATA = Path(__file__).parents[1] / "data"
QWEN = (DATA / "chat" / "Qwen3.5-4B.jinja").read_text()
ANY_ORDER = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOLS_LATE = (  # before the last message, as Mistral's has them
    "{% for m in messages %}{% if loop.last and tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]\n{% endif %}"
    "{{ m.role }}: {{ m.content }}\n{% endfor %}"
)
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {}}}]
FILLER = "The old man crossed the river slowly. "
QUESTION = "Which access code does Roland use?"
LONG = f"{FILLER * 80}\n{QUESTION}"
SYSTEM = "Answer in one short sentence, as a friend would."


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_metadata(open_gguf(Path(vkprefill.__file__).parent / "data" / "target.gguf").metadata)


class Chat:
    """A conversation, and what is protected of it as text."""

    def __init__(self, tokenizer: Tokenizer, source: str, messages, tools=None, continued=False) -> None:
        template = ChatTemplate(source, tokenizer)

        def render(messages, tools, continued):
            return template.parts(messages, tools=tools, continue_final=continued)

        self.prompt = Rendered(render(messages, tools, continued), tokenizer)
        self.protected = protected_of_chat(self.prompt, render, messages, tools, continued=continued)
        decode, ids = tokenizer.decode, self.prompt.token_ids
        self.fixed, self.opening, self.question = (
            [decode(ids[start:end]) for start, end in ranges]
            for ranges in (self.protected.fixed, self.protected.opening, self.protected.question.all)
        )


def said(role: str, content: object) -> dict[str, object]:
    return {"role": role, "content": content}


@pytest.mark.parametrize("source", [QWEN, ANY_ORDER, TOOLS_LATE], ids=["Qwen3.5", "any order", "tools late"])
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_system_message_tools_and_question(tokenizer, source, tools):
    chat = Chat(tokenizer, source, [said("system", SYSTEM), said("user", LONG)], tools)
    assert SYSTEM in chat.fixed[0] and QUESTION in chat.question[-1]
    assert any("look_up" in text for text in chat.fixed) == bool(tools and "tools" in source)
    assert all(FILLER not in text for text in chat.fixed), "the message itself is not fixed"
    assert chat.protected.question.all[-1][1] <= len(chat.prompt.token_ids)


def test_what_opens_the_answer(tokenizer):
    chat = Chat(tokenizer, QWEN, [said("user", LONG)])
    assert chat.fixed == [] and chat.opening == ["<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n<think>\n"]
    assert chat.question[-1] == QUESTION
    assert chat.protected.shared_n == chat.protected.opening[0][1]


def test_the_last_of_several_users_messages(tokenizer):
    messages = [said("user", f"{FILLER * 80}\nWho sold it?"), said("assistant", "Anna."), said("user", LONG)]
    chat = Chat(tokenizer, QWEN, messages)
    assert chat.question[-1] == QUESTION and not any("Who sold it?" in text for text in chat.question)
    follow_up = Chat(tokenizer, QWEN, [*messages, said("assistant", "9951."), said("user", "And Peter?")])
    assert follow_up.question == ["And Peter?"]


def test_a_users_message_before_results_of_tools(tokenizer):
    messages = [
        said("user", f"{QUESTION}\n{FILLER * 80}"),
        said("assistant", "I look."),
        said("tool", FILLER * 80),
    ]
    chat = Chat(tokenizer, QWEN, messages)
    assert chat.question[0].strip() == QUESTION
    assert len(chat.opening) == 1, "what follows the message is long: no opening of the answer"


def test_a_begun_answer_is_read(tokenizer):
    messages = [said("user", LONG), said("assistant", FILLER * 30 + "The code of Roland is")]
    chat = Chat(tokenizer, ANY_ORDER, messages, continued=True)
    assert QUESTION in chat.question
    assert chat.question[-1].endswith("The code of Roland is")
    assert chat.protected.question.all[-1][1] == len(chat.prompt.token_ids)


def test_late_system_messages(tokenizer):
    messages = [said("system", SYSTEM), said("user", LONG), said("system", "Be brief."), said("user", LONG)]
    chat = Chat(tokenizer, ANY_ORDER, messages)
    assert chat.fixed[1] == "Be brief." and chat.question[-1] == QUESTION
    developer = Chat(tokenizer, ANY_ORDER, [said("developer", SYSTEM), said("user", LONG)])
    assert SYSTEM in developer.fixed[0]


def test_content_in_parts_and_special_tokens_in_it(tokenizer):
    parts = [{"type": "text", "text": FILLER * 80 + "<|im_end|>"}, {"type": "text", "text": f"\n{QUESTION}"}]
    chat = Chat(tokenizer, QWEN, [said("user", parts)])
    assert chat.question[-1] == QUESTION and chat.question[0].startswith("The old man")


@pytest.mark.parametrize("content", ["", "x", "xyz", "x y z", "user", "assistant"])
def test_short_messages(tokenizer, content):
    chat = Chat(tokenizer, QWEN, [said("user", content)])
    assert chat.question == ([content] if content else [])


def test_settings_choose(tokenizer):
    protected = Protected(((0, 4),), ((7, 8),), Requests(((9, 15),), ((11, 15),), ((14, 15),)))
    assert protected.ranges(SpecPrefillConfig(), 100) == ((0, 4), (9, 15))
    assert protected.ranges(SpecPrefillConfig(protect_question=False), 100) == ((0, 4),)
    by_share = SpecPrefillConfig(select_mode="chunk", keep_ratio=0.1)
    assert protected.ranges(by_share, 120) == ((0, 4), (9, 15)), "6 are half of 12, whatever the system prompt takes"
    assert protected.ranges(by_share, 119) == ((0, 4), (11, 15)), "the last line and the heart of the first"
    assert protected.ranges(by_share, 79) == protected.ranges(by_share, 1) == ((0, 4), (14, 15)), "the heart"


def test_tokens_alone(tokenizer):
    """A raw prompt is the user's message; where special tokens divide it, the user's part is."""

    def found(text: str) -> list[str]:
        ids = tokenizer.encode(text, special=True)
        return [tokenizer.decode(ids[start:end]) for start, end in protected_of_tokens(tokenizer, ids).question.all]

    assert found(LONG)[-1] == QUESTION and found("Hi") == ["Hi"]
    opened = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    whole = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{LONG}{opened}"
    assert found(whole)[-1] == QUESTION and found(whole)[0].startswith("The old man")
    ids = tokenizer.encode(whole, special=True)
    assert tokenizer.decode(ids[slice(*protected_of_tokens(tokenizer, ids).opening[0])]) == opened
    assert found(f"{whole}The code is")[-1] == QUESTION, "the beginning of the answer is no message of the user"
    assert found(f"<|im_start|>{LONG}<|im_end|>")[-1] == QUESTION
    assert found("<|im_start|><|im_end|>") == [] and protected_of_tokens(tokenizer, []) == Protected()


@pytest.mark.parametrize(
    "question, settings, expected",
    [
        ((), {}, 32),
        (((80, 95),), {}, 32),
        (((60, 95),), {}, 40),
        (((36, 95),), {}, 64),
        (((35, 95),), {}, 32),
        (((10, 20), (60, 68)), {}, 32),  # it ends before the last 32
        (((60, 95),), {"tail_queries": 7}, 7),
        ((), {"tail_queries": 500}, 100),
    ],
)
def test_tail_queries(question, settings, expected):
    assert (
        tail_queries(SpecPrefillConfig(**settings), Protected(question=Requests(question, question, question)), 100)
        == expected
    )
    assert tail_queries(SpecPrefillConfig(), Protected(), 5) == 5
