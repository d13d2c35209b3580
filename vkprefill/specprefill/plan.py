"""Which tokens of a prompt the target runs, and the report that says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral

import numpy as np

from vkprefill.errors import RequestError
from vkprefill.specprefill import guards
from vkprefill.specprefill.guards import RequestFacts
from vkprefill.specprefill.protection import Protected
from vkprefill.specprefill.selection import Selection, least_kept
from vkprefill.specprefill.settings import SpecPrefillConfig
from vkprefill.text.tokenizer import Tokenizer

CHECK_OFF = "off"  # not asked for, or not possible
CHECK_PENDING = "pending"  # the answer ended before
CHECK_EQUAL = "equal"  # the dense answer, token for token
CHECK_REVISED = "revised"  # made equal: what differed was replaced
CHECK_DIFFERS = "differs"  # left as it was
NOT_ASKED_FOR = "not asked for"  # reason
CHECK_STATUSES = (CHECK_OFF, CHECK_PENDING, CHECK_EQUAL, CHECK_REVISED, CHECK_DIFFERS)


def check_report(status: str, reason: str) -> dict[str, object]:
    """The object `check` of a report before anything was compared.

    status: one of CHECK_STATUSES; agreed_n: tokens of the sparse answer that the dense model says too;
    first_difference: index in the answer of the first other token, None where there was none; dense_ms, verify_ms: what
    the dense prefill and the comparison took, without the work between their slices.
    """
    return {
        "status": status,
        "reason": reason,
        "agreed_n": 0,
        "first_difference": None,
        "dense_ms": 0.0,
        "verify_ms": 0.0,
    }


class NoRoomForCheck(RequestError):
    """A check that is to be waited for has no room for its cache beside the answer's."""


@dataclass
class SpecPrefillReport:
    """What happened to a prompt; `as_dict` is the object `specprefill` of JSON answers. Times in milliseconds.

    status: one of guards.STATUSES, reason: a sentence; prompt_n: T; cached_n: tokens no prefill was needed for,
    cached_ranges: those of them that the target has run, as [start, end): what is missing earlier prefills left out;
    kept_n: tokens of the rest that the target ran, kept_ranges: which; unused: those of the settings asked for that had
    no part, and why; ttft_ms: from the call to the first sampled token; check: what came of comparing the answer with
    the dense one, see check_report. importance float32 [T] and kept int64 [K] are arrays for the API, None where there
    are none.
    """

    status: str
    reason: str
    prompt_n: int
    cached_n: int = 0
    cached_ranges: list[list[int]] = field(default_factory=list)
    kept_n: int = 0
    kept_ranges: list[list[int]] = field(default_factory=list)
    settings: dict[str, object] = field(default_factory=dict)
    unused: dict[str, str] = field(default_factory=dict)
    score_ms: float = 0.0
    lookahead_ms: float = 0.0
    select_ms: float = 0.0
    sparse_prefill_ms: float = 0.0
    ttft_ms: float = 0.0
    dense_estimate_ms: float | None = None
    check: dict[str, object] = field(default_factory=lambda: check_report(CHECK_OFF, NOT_ASKED_FOR))
    importance: np.ndarray | None = field(default=None, repr=False)
    kept: np.ndarray | None = field(default=None, repr=False)

    def as_dict(self) -> dict[str, object]:
        """For JSON: without the arrays."""
        return {name: value for name, value in vars(self).items() if name not in ("importance", "kept")}


@dataclass(frozen=True)
class Scored:
    """A dry run: importance float32 [T] as the draft gives it; selection: chunk bounds and scores, kept int32 [K],
    kept_ranges.
    """

    importance: np.ndarray
    selection: Selection
    score_ms: float
    lookahead_ms: float
    select_ms: float

    @property
    def chunk_scores(self) -> np.ndarray:
        return self.selection.chunk_scores

    @property
    def kept(self) -> np.ndarray:
        return self.selection.kept

    @property
    def kept_ranges(self) -> tuple[tuple[int, int], ...]:
        return self.selection.kept_ranges


@dataclass
class Plan:
    """Which tokens of a prompt the target is to run: `kept` int64 [K], positions in the prompt, all of the new ones
    where it is dense.
    """

    kept: np.ndarray
    report: SpecPrefillReport
    importance: np.ndarray | None = None
    selection: Selection | None = None

    @property
    def sparse(self) -> bool:
        return self.report.status == guards.ACTIVE


@dataclass(frozen=True)
class SparseRequest:
    """What is asked of speculative prefill for one prompt.

    enabled: False for an exact answer; config: settings (None: those of the pair); kept_ranges: a choice made elsewhere
    (an earlier answer's), in place of scoring; facts: for the guards; protected: what is kept whatever is chosen
    (None: what the tokens alone tell).
    """

    enabled: bool = True
    config: SpecPrefillConfig | None = None
    kept_ranges: Sequence[Sequence[int]] | None = None
    facts: RequestFacts = RequestFacts()
    protected: Protected | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.config, SpecPrefillConfig | None):
            raise RequestError(f"spec: found {type(self.config).__name__}, wanted SpecPrefillConfig")

    def having(self, fields: Mapping[str, object]) -> SparseRequest:
        """With these fields. RequestError for another name: an option that would do nothing."""
        names = self.__dataclass_fields__
        for name in fields:
            if name not in names:
                raise RequestError(f"speculative prefill: found option {name}, wanted some of {', '.join(names)}")
        return replace(self, **fields)


def choice_reason(selection: Selection, new: int, config: SpecPrefillConfig, scorer: str) -> str:
    """A sentence on a choice among `new` tokens; a limit that acted is named, and what is kept beyond a share."""
    reason = f"{scorer} chose {len(selection.kept)} of {new} new tokens"
    if selection.floor_n:
        reason += f", {selection.floor_n} of them since at least {least_kept(new)} are kept (a tenth, but 4 to 128)"
    forced_n = len(selection.forced)
    if config.select_mode == "chunk" and forced_n > config.keep_ratio * new:
        reason += f"; {forced_n} of them are kept in any case, more than the share {config.keep_ratio:g}"
    elif 0 < config.most_kept < forced_n:
        reason += f"; {forced_n} of them are kept in any case, more than max_keep {config.most_kept}"
    if selection.capped_n:
        limit = f"max_keep {config.most_kept}" + (", the limit of mode mass," if config.max_keep == "auto" else "")
        reason += f"; {limit} left out {selection.capped_n} more"
    return reason


def finish_plan(plan: Plan, kept: np.ndarray, reason: str | None) -> Plan:
    """Enter the kept tokens into the plan and its report; a reason: a selection was made."""
    report = plan.report
    new = report.prompt_n - report.cached_n
    if reason is not None:
        report.status, report.reason = guards.ACTIVE, reason
        if len(kept) == new:
            report.status, report.reason = guards.KEPT_ALL, f"all of the {new} new tokens were kept"
    plan.kept = kept
    report.kept_n, report.kept_ranges = len(kept), tokens_to_ranges(kept)
    report.importance, report.kept = plan.importance, kept
    report.cached_ranges = [[0, report.cached_n]] if report.cached_n else []
    return plan


def note_holes(report: SpecPrefillReport, positions: Sequence[int]) -> None:
    """Say which of the cached tokens were run, those at these positions, and which were not."""
    run = np.asarray([p for p in positions if p < report.cached_n], np.int64)
    report.cached_ranges = tokens_to_ranges(run)
    if len(run) < report.cached_n:
        report.reason += f"; {report.cached_n - len(run)} of the {report.cached_n} cached tokens were left out before"


def tool_guard(
    config: SpecPrefillConfig, facts: RequestFacts, tokenizer: Tokenizer, token_ids: Sequence[int]
) -> str | None:
    """Why a prompt is to be run whole for the tools it defines, or None."""
    if not config.tool_guard:
        return None
    head = tokenizer.decode(token_ids[: guards.TOOL_HEAD_TOKENS])
    return guards.tool_guard(facts, head, config.tool_match)


def plan_as_given(
    dense: Plan, asked: SparseRequest, config: SpecPrefillConfig, tokenizer: Tokenizer, token_ids: Sequence[int]
) -> Plan:
    """The plan of kept ranges that came with a request; the dense one for a prompt with tools."""
    report = dense.report
    kept = given_tokens(asked, report.prompt_n, report.cached_n)
    if reason := tool_guard(config, asked.facts, tokenizer, token_ids):
        report.status, report.reason = guards.SKIPPED_TOOL_GUARD, reason
        return finish_plan(dense, dense.kept, None)
    return finish_plan(dense, kept, "kept ranges given with the request")


def given_tokens(asked: SparseRequest, num_tokens: int, first: int) -> np.ndarray:
    """Positions int64 [K] from `first` on of a request's kept ranges, its system messages and tools, the last token."""
    kept = ranges_to_tokens(asked.kept_ranges, num_tokens)
    for start, end in asked.protected.fixed + asked.protected.opening if asked.protected else ():
        kept = np.union1d(kept, np.arange(start, min(end, num_tokens)))
    return kept[kept >= first].astype(np.int64)


def tokens_to_ranges(kept: np.ndarray) -> list[list[int]]:
    """Rising positions -> [start, end) pairs."""
    if not len(kept):
        return []
    breaks = np.flatnonzero(np.diff(kept) != 1) + 1
    return [[int(part[0]), int(part[-1]) + 1] for part in np.split(kept, breaks)]


def ranges_to_tokens(ranges: Sequence[Sequence[int]], num_tokens: int) -> np.ndarray:
    """[start, end) pairs of a request -> positions int64. The last token is always one.

    Raises RequestError for pairs that are not rising whole numbers from 0 to num_tokens.
    """
    end = 0
    if not isinstance(ranges, Sequence):
        raise RequestError(f"kept_ranges: found {ranges!r}, wanted [start, end) pairs")
    for pair in ranges:
        whole = (
            isinstance(pair, Sequence)
            and len(pair) == 2
            and all(isinstance(n, Integral) and not isinstance(n, bool) for n in pair)
        )
        if not whole or not end <= pair[0] < pair[1] <= num_tokens:
            raise RequestError(f"kept_ranges: found {pair!r}, wanted rising [start, end) pairs from 0 to {num_tokens}")
        end = pair[1]
    kept = np.concatenate([np.arange(start, end) for start, end in ranges] + [np.array([num_tokens - 1])])
    return np.unique(kept).astype(np.int64)
