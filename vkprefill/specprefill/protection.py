"""What of a prompt is kept whatever is chosen: system messages, tool definitions, and where the user asks.

Found in messages and in their text, and given as ranges of tokens: who scores the prompt makes no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from vkprefill.errors import RequestError
from vkprefill.specprefill.questions import OF_LINE, Requests, requests_in
from vkprefill.specprefill.settings import SpecPrefillConfig
from vkprefill.text.rendered import Parts, Rendered
from vkprefill.text.tokenizer import Tokenizer

Message = Mapping[str, object]
Render = Callable[[Sequence[Message], object, bool], Parts]
"""(messages, tools, whether the answer goes on with the last message) -> parts of the prompt; RequestError where the
template refuses them."""

Span = tuple[int, int]

OPENING = 32  # tokens between the user's text and the prompt's end: such as open the answer, and no further messages
TAIL_QUERIES = 32  # where last prompt tokens are queries and no number of them is set,
MOST_QUERIES = 64  # with the question they are part of
OF_SHARE = 0.5
ROLE_TOKENS = 8  # of the line that names who speaks
SYSTEMS, USER = ("system", "developer"), "user"


@dataclass(frozen=True)
class Protected:
    """(start, end) pairs of tokens. fixed: system messages and tool definitions; opening: what opens the user's last
    message and the answer; question: where the user asks; shared_n: first tokens that conversations with the same
    system messages and tools have in common.
    """

    fixed: tuple[Span, ...] = ()
    opening: tuple[Span, ...] = ()
    question: Requests = Requests()
    shared_n: int = 0

    def ranges(self, config: SpecPrefillConfig, num_tokens: int) -> tuple[Span, ...]:
        """Those that are a part of what is kept of so many tokens, as the settings have it: of the request as much as
        takes no more than half of a share, or its heart.
        """
        if not config.protect_question:
            return self.fixed
        share = config.keep_ratio * num_tokens if config.select_mode == "chunk" else num_tokens
        return self.fixed + self.question.within(OF_SHARE * share)

    def count(self, config: SpecPrefillConfig, first: int, num_tokens: int) -> int:
        """How many of the tokens from `first` on are protected."""
        tokens: set[int] = set()
        for start, end in self.ranges(config, num_tokens - first):
            tokens.update(range(max(start, first), end))
        return len(tokens)


def protected_of_chat(
    prompt: Rendered, render: Render, messages: Sequence[Message], tools: object = None, *, continued: bool = False
) -> Protected:
    """What is protected of a conversation that `render` made `prompt` of. continued: the last message is the beginning
    of the answer.
    """
    systems = list(takewhile(lambda message: message.get("role") in SYSTEMS, messages))
    other = _other_text(messages[len(systems)] if len(systems) < len(messages) else {})
    shared = _rendered(render, [*systems, {"role": USER, "content": other}], tools, False)
    shared_n = 0 if shared is None else prompt.shared_n(shared)
    opening, fixed = ([], [(0, shared_n)]) if systems or tools else ([(0, shared_n)], [])
    if tools and (found := _differing(prompt, render, messages, None, continued)):
        fixed.append(found)  # some templates put them elsewhere
    for number, message in enumerate(messages):
        if message.get("role") in SYSTEMS and number >= len(systems):
            fixed += _place_of(prompt, render, messages, tools, number, continued)
    last = max((n for n, message in enumerate(messages) if message.get("role") == USER), default=None)
    question = Requests()
    for start, end in _place_of(prompt, render, messages, tools, last, continued) if last is not None else ():
        question = _requests(prompt.tokenizer, prompt.token_ids, start, end)
        if len(prompt.token_ids) - end <= OPENING:
            opening.append((end, len(prompt.token_ids)))
    if continued:
        question += _requests(prompt.tokenizer, prompt.token_ids, max(0, len(prompt.token_ids) - OF_LINE), None)
    return Protected(tuple(fixed), tuple(opening), question, shared_n)


def protected_of_tokens(tokenizer: Tokenizer, token_ids: Sequence[int]) -> Protected:
    """What is protected of a prompt of which only the tokens are known: all of it is taken for the user's message, or,
    where special tokens divide it, the last part that is named the user's, else the last that says something.
    """
    special = set(tokenizer.special_tokens.values())
    cuts = [-1, *(n for n, token_id in enumerate(token_ids) if token_id in special), len(token_ids)]
    said = None
    for before, end in zip(cuts[-2::-1], cuts[:0:-1], strict=True):
        start, role = _without_role(tokenizer, token_ids, before + 1, end)
        if start < end and tokenizer.decode(token_ids[start:end]).strip():
            said = (start, end) if said is None or role == USER else said
            if role in (USER, ""):
                break
    if said is None:
        return Protected()
    opening = ((said[1], len(token_ids)),) if 0 < len(token_ids) - said[1] <= OPENING else ()
    return Protected(opening=opening, question=_requests(tokenizer, token_ids, *said))


def _without_role(tokenizer: Tokenizer, token_ids: Sequence[int], start: int, end: int) -> tuple[int, str]:
    """(first token after the line that says whose message begins after a special token, that role: "" for none)."""
    raw = b""
    for place in range(start, min(end, start + ROLE_TOKENS) if start else start):
        raw += tokenizer.token_bytes(token_ids[place])
        if b"\n" in raw:
            role = raw.strip().decode(errors="replace")
            return (place + 1, role) if role.isalpha() else (start, "")
    return start, ""


def tail_queries(config: SpecPrefillConfig, protected: Protected, num_tokens: int) -> int:
    """How many last prompt tokens are queries, where such are used: as many as are set, or 32, or, where the end of
    the prompt is a question that is longer, all of it, up to 64.
    """
    if config.tail_queries:
        return min(config.tail_queries, num_tokens)
    found = TAIL_QUERIES
    for start, end in protected.question.heart:
        if end > num_tokens - TAIL_QUERIES and num_tokens - start <= MOST_QUERIES:
            found = max(found, num_tokens - start)
    return min(found, num_tokens)


def _requests(tokenizer: Tokenizer, token_ids: Sequence[int], start: int, end: int | None) -> Requests:
    """What requests_in finds in the text from token `start` to `end`."""
    return requests_in([tokenizer.token_bytes(token_id) for token_id in token_ids[start:end]]).moved(start)


def _place_of(
    prompt: Rendered, render: Render, messages: Sequence[Message], tools: object, number: int, continued: bool
) -> list[Span]:
    """Where a message's text stands, as one range; none where the template leaves it out."""
    message = messages[number]
    others = [*messages[:number], {**message, "content": _other_text(message)}, *messages[number + 1 :]]
    found = _differing(prompt, render, others, tools, continued)
    return [found] if found else []


def _differing(
    prompt: Rendered, render: Render, messages: Sequence[Message], tools: object, continued: bool
) -> Span | None:
    others = _rendered(render, messages, tools, continued)
    return None if others is None else prompt.differing(others)


def _rendered(render: Render, messages: Sequence[Message], tools: object, continued: bool) -> Parts | None:
    try:
        return render(messages, tools, continued)
    except RequestError:
        return None


def _other_text(message: Message) -> str:
    """A text that has neither its first nor its last character in common with the message's."""
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        content = "".join(text for text in texts if isinstance(text, str))
    text = content.strip() if isinstance(content, str) else ""
    return next(one for one in "xyz" if one not in (text[:1], text[-1:]))
