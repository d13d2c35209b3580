"""Who may go on from a state that a sparse prefill left tokens out of: no answer comes from tokens chosen for another.

Two kinds of prompts may: one that would be pruned in the same way, and the next turn of the conversation that made the
state, which extends all of it, the answer included. Every other prompt runs exact.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from vkprefill.engine.prompt_cache import Mark, common_length
from vkprefill.specprefill.plan import SparseRequest, given_tokens
from vkprefill.text.tokenizer import Tokenizer

THOUGHT = re.compile(r"<think>.*?</think>", re.DOTALL)  # chat templates leave it out of the history
OPEN_THOUGHT = re.compile(r"<think>.*", re.DOTALL)


@dataclass(eq=False)
class PrunedTurn:
    """A turn whose state lacks tokens: its prompt, what was asked of it, and the answer so far.

    history_n: length of the prompt without what opens the answer.
    """

    asked: SparseRequest
    token_ids: list[int]
    history_n: int
    answer: list[int] = field(default_factory=list)


def may_go_on(asked: SparseRequest, token_ids: Sequence[int], tokenizer: Tokenizer, mark: Mark) -> bool:
    """Whether a prompt may use a mark that a PrunedTurn made."""
    turn = mark.lacks
    if not asked.enabled or not isinstance(turn, PrunedTurn):
        return False
    return _pruned_alike(mark, turn, asked, token_ids) or _continues(turn, token_ids, tokenizer)


def _pruned_alike(mark: Mark, turn: PrunedTurn, asked: SparseRequest, token_ids: Sequence[int]) -> bool:
    """The same prompt with the same settings, or ranges that keep the same tokens of what the mark stands for."""
    if asked.kept_ranges is None or turn.asked.kept_ranges is None:
        return asked == turn.asked and list(token_ids) == turn.token_ids
    kept = given_tokens(asked, len(token_ids), 0)
    return asked.config == turn.asked.config and kept[kept < mark.length].tolist() == mark.positions


def _continues(turn: PrunedTurn, token_ids: Sequence[int], tokenizer: Tokenizer) -> bool:
    """The turn's prompt and answer, then more. Templates write the history anew, so what follows the history is
    compared as text without its thoughts, up to the end of the message.
    """
    whole = turn.token_ids + turn.answer
    same = common_length(token_ids, whole)
    if same < turn.history_n or not turn.answer:
        return False
    if same == len(whole) < len(token_ids):
        return True
    said, again = (tokenizer.decode(list(ids[turn.history_n :])) for ids in (whole, token_ids))
    again = _squeezed(THOUGHT.sub("", again))
    said = THOUGHT.sub("", said)
    ends = [tokenizer.decode([token_id]) for token_id in tokenizer.eog_token_ids]
    for text in (OPEN_THOUGHT.sub("", said), said.replace("<think>", "")):
        rest = again.removeprefix(_squeezed(text))
        if rest != again and any(rest.lstrip().startswith(end) for end in ends):
            return True
    return False


def _squeezed(text: str) -> str:
    return " ".join(text.split())
