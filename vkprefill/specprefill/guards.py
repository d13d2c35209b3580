"""Whether a prompt is worth a sparse prefill, and the statuses that say what happened. No device, no model.

A guard returns a sentence with the reason to prefill densely, or None. They are asked in the order of the statuses.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

from vkprefill.errors import VkPrefillError

DISABLED = "disabled"  # no draft, or switched off for this request
SKIPPED_TOOL_GUARD = "skipped_tool_guard"
SKIPPED_MIN_TOKENS = "skipped_min_tokens"
SKIPPED_BREAK_EVEN = "skipped_break_even"
KEPT_ALL = "kept_all"  # the selection kept every token: dense prefill
ACTIVE = "active"  # sparse prefill ran
FAILED = "failed"  # the scorer failed, and the setting on_error is "dense"
STATUSES = (DISABLED, SKIPPED_TOOL_GUARD, SKIPPED_MIN_TOKENS, SKIPPED_BREAK_EVEN, KEPT_ALL, ACTIVE, FAILED)

TOOL_HEAD_TOKENS = 256  # the tool words are looked for in the text of this many first tokens
TOOL_WORDS = ('"function"', '"tool"', '"tools"', "<tool_call>", "get_", "set_", "search_")
TOOL_ROLE = "tool"


class BreakEven(NamedTuple):
    """Estimate of what scoring costs and saves, in seconds. `worth`: the saving is above the cost times the safety."""

    worth: bool
    scoring_s: float
    saving_s: float


@dataclass(frozen=True)
class RequestFacts:
    """What the tool guard looks at: the request's tools and grammar fields and the roles of its messages."""

    tools: object = None
    grammar: object = None
    roles: tuple[str, ...] = ()


def tool_guard(facts: RequestFacts, head_text: str = "", match: str = "words") -> str | None:
    """Tool schemas must reach the target whole: a name or a bracket lost makes a call that fails.

    Args:
        facts: a field that is None or empty is none.
        head_text: text of the prompt's first TOOL_HEAD_TOKENS tokens, special tokens included.
        match: "words": a tool word counts where it begins a word; "substrings": within other words too.
    """
    if facts.tools:
        return "the request has tools"
    if facts.grammar:
        return "the request has a grammar"
    if TOOL_ROLE in facts.roles:
        return "a message has the role tool"
    for word in TOOL_WORDS:
        border = r"(?<!\w)" if match == "words" and word[0].isalpha() else ""
        if re.search(border + re.escape(word), head_text):
            return f"the first {TOOL_HEAD_TOKENS} tokens hold {word}"
    return None


def min_tokens_guard(new_tokens: int, min_tokens: int) -> str | None:
    """`new_tokens`: those of the prompt that no cache holds."""
    if new_tokens < min_tokens:
        return f"{new_tokens} new tokens, below min_tokens {min_tokens}"
    return None


@dataclass(frozen=True)
class Speeds:
    """Tokens per second: prefill and decode of the draft, prefill of the target.

    Raises:
        VkPrefillError: a speed that is not above 0.
    """

    draft_tokens_per_s: float
    draft_decode_tokens_per_s: float
    target_tokens_per_s: float

    def __post_init__(self) -> None:
        for name, speed in vars(self).items():
            if not speed > 0:
                raise VkPrefillError(f"{name}: found {speed}, wanted a number above 0")


def break_even(new_tokens: int, expected_kept: float, lookahead: int, speeds: Speeds, safety: float) -> BreakEven:
    """Whether scoring the prompt saves more than it costs.

    scoring = new_tokens / draft speed + lookahead / draft decode speed;
    saving = (new_tokens - expected_kept) / target speed; worth it if saving > scoring x safety.

    Args:
        new_tokens: of the prompt, held by no cache.
        expected_kept: how many of them the target will prefill.
        lookahead: tokens that the draft decodes.
        safety: times the scoring must be saved.
    """
    scoring_s = new_tokens / speeds.draft_tokens_per_s + lookahead / speeds.draft_decode_tokens_per_s
    saving_s = (new_tokens - expected_kept) / speeds.target_tokens_per_s
    return BreakEven(saving_s > scoring_s * safety, scoring_s, saving_s)
