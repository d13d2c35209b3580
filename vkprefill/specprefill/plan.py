"""Which tokens of a prompt the target runs, and the report that says so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral

import numpy as np

from vkprefill.errors import RequestError
from vkprefill.specprefill import guards
from vkprefill.specprefill.guards import RequestFacts
from vkprefill.specprefill.selection import Selection
from vkprefill.specprefill.settings import SpecPrefillConfig


@dataclass
class SpecPrefillReport:
    """What happened to a prompt; `as_dict` is the object `specprefill` of JSON answers. Times in milliseconds.

    status: one of guards.STATUSES, reason: a sentence; prompt_n: T; cached_n: tokens no prefill was needed for; kept_n:
    tokens of the rest that the target ran, kept_ranges: which, as [start, end); ttft_ms: from the call to the first
    sampled token. importance float32 [T] and kept int64 [K] are arrays for the API, None where there are none.
    """

    status: str
    reason: str
    prompt_n: int
    cached_n: int = 0
    kept_n: int = 0
    kept_ranges: list[list[int]] = field(default_factory=list)
    settings: dict[str, object] = field(default_factory=dict)
    score_ms: float = 0.0
    lookahead_ms: float = 0.0
    select_ms: float = 0.0
    sparse_prefill_ms: float = 0.0
    ttft_ms: float = 0.0
    dense_estimate_ms: float | None = None
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
    (an earlier answer's), in place of scoring; facts: for the guards.
    """

    enabled: bool = True
    config: SpecPrefillConfig | None = None
    kept_ranges: Sequence[Sequence[int]] | None = None
    facts: RequestFacts = RequestFacts()

    @classmethod
    def of(cls, **fields: object) -> SparseRequest:
        """With these fields. RequestError for another name: an option that would do nothing."""
        names = cls.__dataclass_fields__
        for name in fields:
            if name not in names:
                raise RequestError(f"speculative prefill: found option {name}, wanted some of {', '.join(names)}")
        return cls(**fields)


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
    return plan


def given_plan(kept_ranges: Sequence[Sequence[int]], num_tokens: int, cached_n: int = 0) -> Plan:
    """The plan of kept ranges that came with a request, without a draft."""
    kept = ranges_to_tokens(kept_ranges, num_tokens, cached_n)
    plan = Plan(kept, SpecPrefillReport(guards.ACTIVE, "", num_tokens, cached_n))
    return finish_plan(plan, kept, "kept ranges given with the request")


def tokens_to_ranges(kept: np.ndarray) -> list[list[int]]:
    """Rising positions -> [start, end) pairs."""
    if not len(kept):
        return []
    breaks = np.flatnonzero(np.diff(kept) != 1) + 1
    return [[int(part[0]), int(part[-1]) + 1] for part in np.split(kept, breaks)]


def ranges_to_tokens(ranges: Sequence[Sequence[int]], num_tokens: int, first: int) -> np.ndarray:
    """[start, end) pairs of a request -> positions int64, those below `first` left out. The last token is always one.

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
    return np.unique(kept[kept >= first]).astype(np.int64)
