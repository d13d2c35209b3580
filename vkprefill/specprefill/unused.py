"""Which settings have no part in a prompt, and why. Reports, the command line and the server say it by these rules
alone, so that no wish is dropped in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

from vkprefill.specprefill.settings import DRAFT, SELF, SpecPrefillConfig

OF_DRAFT = ("lookahead", "score_layers", "score_depth", "window", "draft_context", "draft_tokens_per_s")
OF_SELF = ("score_layer",)
OF_GUARDS = ("min_tokens", "tool_guard", "tool_match", "break_even", "on_error")
OF_BREAK_EVEN = ("break_even_safety", "draft_tokens_per_s", "target_tokens_per_s")
OF_CHECK = ("on_mismatch", "check_share", "check_idle")
OF_GIVEN_RANGES = ("scorer", "tool_guard", "tool_match", "check", *OF_SELF, *OF_CHECK)  # what there is left to set
ALL = tuple(setting.name for setting in fields(SpecPrefillConfig))

OFF = "speculative prefill is off"
NO_DRAFT = "no draft model in use"
Reasons = Iterator[tuple[Iterable[str], str]]


@dataclass(frozen=True)
class Use:
    """What settings are used for. scorer: who scores, DRAFT, SELF, or None for nobody, which `why` is about;
    given_ranges: the choice was made elsewhere; stops_early: the draft runs its early layers only; draft_context: what
    the draft was loaded with; num_tokens: of the prompt. None where it is not known yet.
    """

    scorer: str | None
    why: str = OFF
    given_ranges: bool = False
    stops_early: bool = False
    draft_context: int | None = None
    num_tokens: int | None = None
    guarded: bool = True


def unused(config: SpecPrefillConfig, use: Use, names: Iterable[str] | None = None) -> dict[str, str]:
    """Setting -> why it has no part, of these settings (None: those that were asked for), in their order."""
    found: dict[str, str] = {}
    for some, why in _reasons(config, use):
        found = {**dict.fromkeys(some, why), **found}  # the first reason stands
    wanted = config.given if names is None else set(names)
    return {name: found[name] for name in ALL if name in found and name in wanted}


def unused_by_all(config: SpecPrefillConfig, uses: Sequence[Use]) -> dict[str, str]:
    """Those of the settings that were asked for that none of some uses has a part for, with the first one's reason."""
    found = [unused(config, use) for use in uses]
    return {name: why for name, why in found[0].items() if all(name in one for one in found)}


def _reasons(config: SpecPrefillConfig, use: Use) -> Reasons:
    if use.given_ranges:
        yield [name for name in ALL if name not in OF_GIVEN_RANGES], "kept_ranges were given in place of a choice"
    elif use.scorer is None:  # the answer is dense, which is what a check would say
        yield [name for name in ALL if name != "check"], use.why
    if not use.guarded:
        yield [*OF_GUARDS, *OF_BREAK_EVEN], "every prompt is scored here"
    if config.keep_ratio == 1:
        yield ("select_mode", "cumulative_mass", "max_keep", "break_even", *OF_BREAK_EVEN), "keep_ratio 1 keeps all"
    elif config.select_mode == "mass":
        yield ["keep_ratio"], "counts with select_mode chunk only"
    else:
        yield ["cumulative_mass"], "counts with select_mode mass only"
    if use.scorer != DRAFT:
        yield OF_DRAFT, "counts with a draft only"
    elif use.stops_early:
        yield ["lookahead"], "the draft stops early"
    elif config.tail_queries:
        yield ["lookahead"], "tail_queries count in its place"
    if use.scorer != SELF:
        yield OF_SELF, "counts with scorer self only"
    if config.draft_context and config.window != "auto" and use.draft_context not in (None, config.draft_context):
        yield ["draft_context"], f"the draft was loaded with a context of {use.draft_context} tokens"
    if use.num_tokens is not None and all(start >= use.num_tokens for start, _ in config.protect):
        yield ["protect"], f"the prompt has {use.num_tokens} tokens"
    if not config.tool_guard:
        yield ["tool_match"], "tool_guard is off"
    if not config.break_even:
        yield OF_BREAK_EVEN, "break_even is off"
    if config.check == "off":
        yield OF_CHECK, "check is off"
    elif config.check == "wait":
        yield ["check_idle"], "check wait leaves nothing for later"
