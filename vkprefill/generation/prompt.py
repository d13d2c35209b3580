"""What a caller gives as a prompt -> token ids, with what of them is protected from being left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TypeVar

import numpy as np

from vkprefill.display import printable
from vkprefill.engine.outline import Outline
from vkprefill.errors import RequestError
from vkprefill.specprefill.guards import RequestFacts
from vkprefill.specprefill.protection import Protected, protected_of_chat
from vkprefill.text.answer_text import ends_in_thinking
from vkprefill.text.chat_template import begun_answer
from vkprefill.text.rendered import Parts, Rendered

Prompt = str | Sequence[int] | Sequence[Mapping[str, object]]
"""Text (one user message, if the file has a chat template), token ids as they stand, or chat messages."""

P = TypeVar("P", str, list[int])

TEMPLATE_ARGUMENTS = ("self", "messages", "tools", "add_generation_prompt", "continue_final")
THINKING = "enable_thinking"  # the variable by which templates switch reasoning
SWITCH = {"true": True, "True": True, "false": False, "False": False}  # what else it may be given as, with 0 and 1


class EncodedPrompt:
    """token_ids; thinking: whether the model is asked to think first; facts: for guards."""

    def __init__(self, token_ids: list[int], thinking: bool = False, chat: ChatPrompt | None = None) -> None:
        self.token_ids, self.thinking, self._chat = token_ids, thinking, chat

    @property
    def facts(self) -> RequestFacts:
        return RequestFacts() if self._chat is None else self._chat.facts

    @property
    def protected(self) -> Protected | None:
        """None for text and token ids as they stand: the tokens tell what is."""
        return None if self._chat is None else self._chat.protected


class ChatPrompt:
    """Messages through a model's chat template. Raises RequestError for what the template refuses."""

    def __init__(
        self, model: Outline, messages: Sequence[Mapping[str, object]], tools: object, variables: Mapping[str, object]
    ) -> None:
        """variables: of the template, checked. The answer goes on with a last message of the assistant's."""
        self._template, self._messages, self._tools, self._variables = model.chat_template, messages, tools, variables
        if self._template is None:
            raise RequestError(f"messages: {model.path.name} has no chat template")
        self._goes_on = begun_answer(messages)
        self.rendered = Rendered(self._parts(messages, tools, self._goes_on), model.tokenizer)
        self.facts = RequestFacts(tools=tools, roles=tuple(str(m.get("role")) for m in messages))

    @property
    def token_ids(self) -> list[int]:
        return self.rendered.token_ids

    @property
    def history_n(self) -> int:
        """First tokens that the next turn will share: without what opens the answer, or what it begins with."""
        known = self._messages[:-1] if self._goes_on else self._messages
        others = self._template.parts(known, tools=self._tools, add_generation_prompt=False, **self._variables)
        return self.rendered.shared_n(others)

    @cached_property
    def protected(self) -> Protected:
        return protected_of_chat(self.rendered, self._parts, self._messages, self._tools, continued=self._goes_on)

    def _parts(self, messages: Sequence[Mapping[str, object]], tools: object, goes_on: bool) -> Parts:
        return self._template.parts(messages, tools=tools, continue_final=goes_on, **self._variables)


def encode_prompt(
    model: Outline,
    prompt: Prompt,
    *,
    raw: bool = False,
    system_prompt: str | None = None,
    template_kwargs: Mapping[str, object] | None = None,
) -> EncodedPrompt:
    """The prompt's token ids, and what is known of them.

    raw: text as it stands, special tokens in it are read as such. Messages that end in the assistant's are gone on
    with: the answer is what follows. Raises RequestError for an empty prompt, and for system_prompt or template_kwargs
    that would go nowhere.
    """
    if not isinstance(prompt, str | Sequence | np.ndarray) or isinstance(prompt, bytes | bytearray | memoryview):
        raise RequestError(f"prompt: found {type(prompt).__name__}, wanted text, messages or token ids")
    _refuse_unused(model, prompt, raw, system_prompt, template_kwargs)
    if isinstance(prompt, str):
        _not_empty(prompt)
        if raw or model.chat_template is None:
            ids = model.tokenizer.encode(prompt, special=True)
            if model.tokenizer.add_bos and model.tokenizer.bos_token_id is not None:
                ids = [model.tokenizer.bos_token_id, *ids]
            return EncodedPrompt(_not_empty(ids))
        prompt = [{"role": "user", "content": prompt}]
        if system_prompt is not None:
            prompt = [{"role": "system", "content": system_prompt}, *prompt]
    if len(prompt) and isinstance(prompt[0], Mapping):
        chat = ChatPrompt(model, prompt, None, template_variables(template_kwargs))
        return EncodedPrompt(_not_empty(chat.token_ids), ends_in_thinking(model.tokenizer, chat.token_ids), chat)
    if not all(isinstance(token, int | np.integer) and not isinstance(token, bool) for token in prompt):
        raise RequestError("prompt: wanted text, messages or token ids")
    return EncodedPrompt(_not_empty([int(token) for token in prompt]))


def _refuse_unused(
    model: Outline, prompt: Prompt, raw: bool, system_prompt: str | None, template_kwargs: Mapping[str, object] | None
) -> None:
    is_messages = not isinstance(prompt, str) and len(prompt) > 0 and isinstance(prompt[0], Mapping)
    if not (isinstance(prompt, str) or is_messages):
        reason = "the prompt is token ids"
    elif raw and not is_messages:
        reason = "a raw prompt is taken as it stands"
    elif model.chat_template is None:
        reason = f"{printable(model.path.name)} has no chat template"
    else:
        reason = ""
    if template_kwargs and reason:
        raise RequestError(f"template_kwargs: {reason}")
    if system_prompt is not None and (reason or is_messages):
        raise RequestError(f"system_prompt: {reason or 'the prompt is messages, where one is a message too'}")


def template_variables(template_kwargs: Mapping[str, object] | None) -> dict[str, object]:
    """A request's variables for the chat template. RequestError for names that the template is called with anyway.

    enable_thinking becomes a bool, which is what templates compare it with: any other value would switch nothing.
    """
    variables = dict(template_kwargs or {})
    for name in variables:
        if not isinstance(name, str) or name in TEMPLATE_ARGUMENTS:
            raise RequestError(f"chat template variable {name!r}: cannot be set here")
    if variables.get(THINKING) is not None:
        variables[THINKING] = _switch(variables[THINKING])
    return variables


def _switch(value: object) -> bool:
    found = SWITCH.get(value) if isinstance(value, str) else value
    if not isinstance(found, int | float) or found not in (0, 1):
        raise RequestError(f"chat template variable '{THINKING}': found {printable(value)}, wanted true or false")
    return bool(found)


def _not_empty(prompt: P) -> P:
    if not prompt:
        raise RequestError("prompt: it is empty, wanted at least one token")
    return prompt
