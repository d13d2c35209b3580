"""Turns checked requests into token ids in the server's process, so that mistakes are answered without a queue."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from vkprefill.errors import ContextLengthError, RequestError
from vkprefill.generation.prompt import THINKING
from vkprefill.gguf.config import ModelConfig
from vkprefill.gguf.file import open_gguf
from vkprefill.server.api_error import bad_request
from vkprefill.server.protocol.messages import Message, joined_systems
from vkprefill.server.protocol.requests import Conversation
from vkprefill.specprefill.plan import RequestFacts
from vkprefill.specprefill.protection import Protected, protected_of_chat
from vkprefill.text.answer_text import ends_in_thinking
from vkprefill.text.chat_template import ChatTemplate
from vkprefill.text.rendered import Parts, Rendered
from vkprefill.text.tokenizer import Tokenizer

T = TypeVar("T")

MIN_SHARED = 32  # tokens of a system prompt that are worth a mark of their own


@dataclass(frozen=True)
class Prompt:
    """mark_at: lengths of the beginnings that later prompts will share; protected: what a sparse prefill keeps in any
    case; thinking: the answer starts inside of reasoning; continued: it goes on with the last message."""

    token_ids: list[int]
    mark_at: tuple[int, ...] = ()
    protected: Protected | None = None
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
        prompt = Rendered(parts, self.tokenizer, self._encoded(parts, room))
        ids = prompt.token_ids
        messages, options = conversation.messages, _options(conversation)
        history = replace(conversation, generation_prompt=False, continued=False)
        if conversation.continued:
            history = replace(history, messages=messages[:-1])
        history_n = self._shared_n(prompt, history)

        def render(others: Sequence[Message], tools: object, continued: bool) -> Parts:
            other = replace(conversation, messages=list(others), tools=tools, continued=continued)
            return self.template.parts(other.messages, **_options(other))

        protected = protected_of_chat(prompt, render, messages, conversation.tools, continued=conversation.continued)
        system_n = protected.shared_n if protected.shared_n >= MIN_SHARED else 0
        marks = sorted({n for n in (system_n, history_n) if 0 < n < len(ids)})
        thinking = ends_in_thinking(self.tokenizer, ids)
        if thinking and options.get(THINKING) is False and not conversation.continued:
            raise bad_request(THINKING, f"found false, but the chat template of {self.path.name} always thinks")
        facts = RequestFacts(tools=conversation.tools, roles=tuple(str(m["role"]) for m in messages))
        return Prompt(ids, tuple(marks), protected, thinking, conversation.continued, facts)

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

    def _shared_n(self, prompt: Rendered, other: Conversation) -> int:
        """How many first tokens another conversation has in common with a prompt; 0 where the template takes no such
        one."""
        try:
            return prompt.shared_n(self._apply(self.template.parts, other)[0])
        except RequestError:
            return 0

    def completion(self, prompt: str | list[int], room: int) -> Prompt:
        """Text as it stands, special tokens in it read as such; or token ids. room: tokens of the context."""
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
