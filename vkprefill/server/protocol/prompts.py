"""Turns checked requests into token ids in the server's process, so that mistakes are answered without a queue."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from vkprefill.errors import ContextLengthError, RequestError
from vkprefill.generation.generate import THINKING
from vkprefill.gguf.config import ModelConfig
from vkprefill.gguf.file import open_gguf
from vkprefill.server.api_error import bad_request
from vkprefill.server.protocol.messages import Message, joined_systems
from vkprefill.server.protocol.requests import CompletionRequest, Conversation
from vkprefill.specprefill.plan import RequestFacts
from vkprefill.text.answer_text import ends_in_thinking
from vkprefill.text.chat_template import ChatTemplate
from vkprefill.text.tokenizer import Tokenizer

T = TypeVar("T")

MIN_SHARED = 32  # tokens of a system prompt that are worth a mark of their own


@dataclass(frozen=True)
class Prompt:
    """mark_at: lengths of the beginnings that later prompts will share; fixed_n: first tokens that are always kept:
    system prompt and tools; thinking: the answer starts inside of reasoning; continued: it goes on with the last
    message."""

    token_ids: list[int]
    mark_at: tuple[int, ...] = ()
    fixed_n: int = 0
    thinking: bool = False
    continued: bool = False
    facts: RequestFacts = RequestFacts()


class PromptBuilder:
    """The tokenizer and chat template of a model's file. Safe to share between threads."""

    def __init__(self, path: Path) -> None:
        file = open_gguf(path)
        self.path = file.path
        self.metadata = file.metadata
        self.num_params = sum(math.prod(tensor.shape) for tensor in file.tensors.values())
        self.config = ModelConfig.from_gguf(file)
        self.tokenizer = Tokenizer.from_metadata(file.metadata, self.config.vocab_size)
        self.template_text = file.metadata.get("tokenizer.chat_template")
        self._template = None if self.template_text is None else ChatTemplate(self.template_text, self.tokenizer)

    @property
    def template(self) -> ChatTemplate:
        if self._template is None:
            raise RequestError(f"messages: {self.path.name} has no chat template; use /v1/completions")
        return self._template

    def chat(self, conversation: Conversation, room: int) -> Prompt:
        """room: tokens of the context. Raises ContextLengthError, and RequestError for what the template refuses."""
        parts, conversation = self._apply(self.template.parts, conversation)
        each = self._encoded(parts, room)
        ids = list(itertools.chain.from_iterable(each))
        messages, options = conversation.messages, _options(conversation)
        history = replace(conversation, generation_prompt=False, continued=False)
        if conversation.continued:
            history = replace(history, messages=messages[:-1])
        history_n = self._shared_n(parts, each, history)
        systems = [message for message in messages if message["role"] == "system"]
        fixed_n = self._shared_n(parts, each, _other(conversation, systems))
        marks = sorted({n for n in (fixed_n if fixed_n >= MIN_SHARED else 0, history_n) if 0 < n < len(ids)})
        thinking = ends_in_thinking(self.tokenizer, ids)
        if thinking and options.get(THINKING) is False and not conversation.continued:
            raise bad_request(THINKING, f"found false, but the chat template of {self.path.name} always thinks")
        facts = RequestFacts(tools=conversation.tools, roles=tuple(str(m["role"]) for m in messages))
        return Prompt(ids, tuple(marks), fixed_n, thinking, conversation.continued, facts)

    def chat_text(self, conversation: Conversation) -> str:
        """The prompt of `chat` as text."""
        return self._apply(self.template.render, conversation)[0]

    def _apply(self, apply: Callable[..., T], conversation: Conversation) -> tuple[T, Conversation]:
        """What the template makes of a conversation, and the form in which it took it: where it refuses a second or
        late system message, with all of them as one at the beginning."""
        try:
            return apply(conversation.messages, **_options(conversation)), conversation
        except RequestError:
            joined = joined_systems(conversation.messages)
            if joined is None:
                raise
            conversation = replace(conversation, messages=joined)
            return apply(joined, **_options(conversation)), conversation

    def _encoded(self, parts: list[str | int], room: int, before: int = 0) -> list[list[int]]:
        """The ids of each part. ContextLengthError, without encoding much more than fits, where they and `before` other
        tokens leave no room for an answer."""
        each = list(self.tokenizer.encode_each(parts, most=room - before - 1))
        _check_length(before + sum(map(len, each)), room, "at least ")
        return each

    def _shared_n(self, parts: list[str | int], each: list[list[int]], other: Conversation) -> int:
        """How many first tokens another conversation has in common with the prompt of these parts; 0 where the template
        takes no such one. What they share is not encoded again."""
        try:
            others, _ = self._apply(self.template.parts, other)
        except RequestError:
            return 0
        shared_n = 0
        for number, (part, ids, other_part) in enumerate(zip(parts, each, others, strict=False)):
            if part != other_part:
                before = [""] if number else []  # a first part may be encoded in its own way
                return shared_n + _common(ids, self.tokenizer.encode_parts([*before, other_part]))
            shared_n += len(ids)
        return shared_n

    def completion(self, request: CompletionRequest, room: int) -> Prompt:
        """Text as it stands, special tokens in it read as such; or token ids. room: tokens of the context."""
        prompt = request.prompt
        if isinstance(prompt, str):
            start = self._start_ids()
            each = self._encoded(self.tokenizer.split_special(prompt), room, len(start))
            prompt = [*start, *itertools.chain.from_iterable(each)]
        _check_length(len(prompt), room)
        if not prompt:
            raise RequestError("prompt: it is empty, wanted at least one token")
        wrong = next((token_id for token_id in prompt if not 0 <= token_id < self.config.vocab_size), None)
        if wrong is not None:
            raise RequestError(f"prompt: found token id {wrong}, wanted 0 to {self.config.vocab_size - 1}")
        return Prompt(prompt, (len(prompt) - 1,) if len(prompt) > MIN_SHARED else ())

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """add_special: put the token that starts a text before it, where the model has one; parse_special: False for
        control tokens as text. User-defined ones are read as tokens in any case, as in llama.cpp and Hugging Face."""
        ids = self.tokenizer.encode_parts(self.tokenizer.split_special(text, control=parse_special))
        return [*self._start_ids(), *ids] if add_special else ids

    def _start_ids(self) -> list[int]:
        start = self.tokenizer.bos_token_id
        return [start] if self.tokenizer.add_bos and start is not None else []


def _check_length(num_tokens: int, room: int, at_least: str = "") -> None:
    if num_tokens >= room:
        raise ContextLengthError.of_prompt(f"{at_least}{num_tokens}", room)


def _options(conversation: Conversation) -> dict[str, object]:
    return {
        "tools": conversation.tools,
        "add_generation_prompt": conversation.generation_prompt,
        "continue_final": conversation.continued,
        **conversation.template_kwargs,
    }


def _other(conversation: Conversation, systems: list[Message]) -> Conversation:
    """One that has only the system messages and the tools in common."""
    first = next((message for message in conversation.messages if message["role"] != "system"), None)
    other = "y" if first is not None and str(first["content"]).lstrip().startswith("x") else "x"
    messages = [*systems, {"role": "user", "content": other}]
    return replace(conversation, messages=messages, generation_prompt=True, continued=False)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
