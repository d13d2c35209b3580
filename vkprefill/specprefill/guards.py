"""Whether a prompt is worth a sparse prefill, and the statuses that say what happened. No device, no model.

A guard returns a sentence with the reason to prefill densely, or None. They are asked in the order of the statuses.
"""

from collections.abc import Iterable
from typing import NamedTuple

from vkprefill.errors import VkPrefillError
from vkprefill.specprefill.settings import SpecPrefillConfig

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


def tool_guard(
    tools: object = None, grammar: object = None, roles: Iterable[str] = (), head_text: str = ""
) -> str | None:
    """Tool schemas must reach the target whole: a name or a bracket lost makes a call that fails.

    Args:
        tools: the request's `tools` field; None or empty where there is none.
        grammar: the request's grammar; None or empty where there is none.
        roles: of the request's messages.
        head_text: text of the prompt's first TOOL_HEAD_TOKENS tokens, special tokens included. Tool words are matched
            as they stand, within other words too.
    """
    if tools:
        return "the request has tools"
    if grammar:
        return "the request has a grammar"
    if TOOL_ROLE in roles:
        return "a message has the role tool"
    for word in TOOL_WORDS:
        if word in head_text:
            return f"the first {TOOL_HEAD_TOKENS} tokens hold {word}"
    return None


def min_tokens_guard(new_tokens: int, min_tokens: int) -> str | None:
    """`new_tokens`: those of the prompt that no cache holds."""
    if new_tokens < min_tokens:
        return f"{new_tokens} new tokens, below min_tokens {min_tokens}"
    return None


def estimate_kept(new_tokens: int, config: SpecPrefillConfig, mean_share: float | None = None) -> float:
    """How many of the new tokens a selection will keep, for the estimate before there is one.

    Args:
        new_tokens: of the prompt, held by no cache.
        config: keep_ratio and max_keep count.
        mean_share: 0 to 1, mean share of the new tokens that earlier selections kept; None before the first, then
            keep_ratio stands for it.
    """
    share = config.keep_ratio if mean_share is None or config.keep_ratio == 1 else mean_share
    kept = share * new_tokens
    return min(kept, config.max_keep) if config.max_keep and config.keep_ratio < 1 else kept


def break_even(
    new_tokens: int,
    expected_kept: float,
    lookahead: int,
    draft_tokens_per_s: float,
    draft_decode_tokens_per_s: float,
    target_tokens_per_s: float,
    safety: float,
) -> BreakEven:
    """Whether scoring the prompt saves more than it costs.

    scoring = new_tokens / draft speed + lookahead / draft decode speed;
    saving = (new_tokens - expected_kept) / target speed; worth it if saving > scoring x safety.

    Args:
        new_tokens: of the prompt, held by no cache.
        expected_kept: how many of them the target will prefill.
        lookahead: tokens that the draft decodes.
        draft_tokens_per_s: prefill speed of the draft, above 0; so are the other speeds.
        draft_decode_tokens_per_s: decode speed of the draft.
        target_tokens_per_s: prefill speed of the target.
        safety: times the scoring must be saved.

    Raises:
        VkPrefillError: a speed that is not above 0.
    """
    speeds = {
        "draft_tokens_per_s": draft_tokens_per_s,
        "draft_decode_tokens_per_s": draft_decode_tokens_per_s,
        "target_tokens_per_s": target_tokens_per_s,
    }
    for name, speed in speeds.items():
        if not speed > 0:
            raise VkPrefillError(f"{name}: found {speed}, wanted a number above 0")
    scoring_s = new_tokens / draft_tokens_per_s + lookahead / draft_decode_tokens_per_s
    saving_s = (new_tokens - expected_kept) / target_tokens_per_s
    return BreakEven(saving_s > scoring_s * safety, scoring_s, saving_s)
