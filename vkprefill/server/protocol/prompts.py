"""Checked requests -> token ids, in the server's process: mistakes are answered without a place in the queue."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vkprefill.errors import RequestError
from vkprefill.generation.options import OPEN_THINKING
from vkprefill.gguf.config import ModelConfig
from vkprefill.gguf.file import open_gguf
from vkprefill.server.protocol.requests import ChatRequest, CompletionRequest
from vkprefill.specprefill.plan import RequestFacts
from vkprefill.text.chat_template import ChatTemplate
from vkprefill.text.tokenizer import Tokenizer

MIN_SHARED = 32  # tokens of a system prompt that are worth a mark of their own


@dataclass(frozen=True)
class Prompt:
    """mark_at: lengths of the beginnings that later prompts will share; fixed_n: first tokens that are always kept:
    system prompt and tools; thinking: the answer starts inside of reasoning."""

    token_ids: list[int]
    mark_at: tuple[int, ...] = ()
    fixed_n: int = 0
    thinking: bool = False
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

    def chat(self, request: ChatRequest) -> Prompt:
        """Raises RequestError for what the template refuses."""
        messages, options = request.messages, {"tools": request.tools, **request.template_kwargs}
        ids = self.template.encode(messages, **options)
        history_n = _common(ids, self.template.encode(messages, add_generation_prompt=False, **options))
        fixed_n = self._fixed_n(ids, messages, options)
        marks = sorted({n for n in (fixed_n if fixed_n >= MIN_SHARED else 0, history_n) if 0 < n < len(ids)})
        thinking = self.tokenizer.decode(ids[-8:]).rstrip().endswith(OPEN_THINKING)
        facts = RequestFacts(tools=request.tools, roles=tuple(str(m["role"]) for m in messages))
        return Prompt(ids, tuple(marks), fixed_n, thinking, facts)

    def _fixed_n(self, ids: list[int], messages: Sequence[Mapping[str, object]], options: dict[str, object]) -> int:
        """How many first tokens do not depend on the conversation: those that another one with the same system
        message and tools begins with."""
        lead = [message for message in messages[:1] if message["role"] == "system"]
        first = messages[len(lead) : len(lead) + 1]
        other = "y" if first and str(first[0]["content"]).lstrip().startswith("x") else "x"
        try:
            return _common(ids, self.template.encode([*lead, {"role": "user", "content": other}], **options))
        except RequestError:  # a template that takes no such conversation
            return 0

    def completion(self, request: CompletionRequest) -> Prompt:
        """Text as it stands, special tokens in it read as such; or token ids."""
        prompt = request.prompt
        if isinstance(prompt, str):
            prompt = self.encode(prompt, add_special=True, parse_special=True)
        if not prompt:
            raise RequestError("prompt: it is empty, wanted at least one token")
        wrong = next((token_id for token_id in prompt if not 0 <= token_id < self.config.vocab_size), None)
        if wrong is not None:
            raise RequestError(f"prompt: found token id {wrong}, wanted 0 to {self.config.vocab_size - 1}")
        return Prompt(prompt, (len(prompt) - 1,) if len(prompt) > MIN_SHARED else ())

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """add_special: put the token that starts a text before it, where the model has one."""
        ids = self.tokenizer.encode(text, special=parse_special)
        if add_special and self.tokenizer.add_bos and self.tokenizer.bos_token_id is not None:
            ids = [self.tokenizer.bos_token_id, *ids]
        return ids


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
