"""A dry run of speculative prefill: what the draft finds important in a prompt, and which tokens the target would run.

    explain(SpecPrefill, token ids) -> Explanation -> pieces -> text, terminal text, JSON (and explain_html's page)

Only the draft works, or, where they score, the target's early layers on a cache of their own. Where a guard decides for
a dense prefill, the choice shown is the one that would be made.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from rich.style import Style
from rich.text import Text

from vkprefill.display import visible
from vkprefill.engine.model import Model
from vkprefill.engine.runner import PrefillProgress
from vkprefill.specprefill import guards
from vkprefill.specprefill.pipeline import SpecPrefill
from vkprefill.specprefill.plan import SpecPrefillReport
from vkprefill.specprefill.protection import Protected, protected_of_tokens, tail_queries
from vkprefill.specprefill.scorer import lookahead_steps, score_kind
from vkprefill.specprefill.selection import Selection
from vkprefill.specprefill.settings import NOPE, SpecPrefillConfig

HEAT_LEVELS = 8
HEAT_RANGE = 30  # the colours span importance from a thirtieth of the greatest upwards, on a logarithmic scale
DROPPED_START, DROPPED_END = "[-", "-]"


# Background of each heat level on a terminal, under black text; none for the lowest.
TERMINAL_HEAT = (None, "#fff3c4", "#ffe08a", "#ffc95c", "#ffb03b", "#ff9233", "#ff7038", "#ff4d3d")
DROPPED_STYLE = Style(dim=True, strike=True)
SPECIAL_STYLE = Style(bold=True, underline=True)


@dataclass(frozen=True, eq=False)
class Explanation:
    """A scored prompt of T tokens.

    Attributes:
        token_ids, token_bytes: of the prompt, special tokens with their text.
        special: which of them are special tokens.
        importance: float32 [T], as the draft gives it.
        selection: what the draft chose; with a status other than active it is not what would be run.
        report: what speculative prefill would do, and its settings. Nothing was prefilled.
        times_ms: what the dry run took: score, lookahead, select.
        target, draft, device: names; draft: of who scored; own_layers: what of the target ran for that; queries: whose
        rows of attention counted.
    """

    token_ids: Sequence[int]
    token_bytes: Sequence[bytes]
    special: Sequence[bool]
    importance: np.ndarray
    selection: Selection
    report: SpecPrefillReport
    times_ms: dict[str, float]
    target: str = ""
    draft: str = ""
    own_layers: str = ""
    queries: str = ""
    device: str = ""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def is_kept(self) -> np.ndarray:
        """bool [T]."""
        mask = np.zeros(self.num_tokens, bool)
        mask[self.selection.kept] = True
        return mask

    def as_dict(self) -> dict[str, object]:
        """The object that `explain --json` prints. importance and scores read back as the same float32 values."""
        return {
            "target": self.target,
            "draft": self.draft,
            "device": self.device,
            "specprefill": self.report.as_dict(),
            "kept_n": len(self.selection.kept),
            "kept_ranges": [list(pair) for pair in self.selection.kept_ranges],
            "times_ms": self.times_ms,
            "token_ids": [int(token_id) for token_id in self.token_ids],
            "tokens": [raw.decode(errors="replace") for raw in self.token_bytes],
            "importance": _floats(self.importance),
            "chunk_bounds": self.selection.chunk_bounds.tolist(),
            "chunk_scores": _floats(self.selection.chunk_scores),
        }


@dataclass(frozen=True)
class Piece:
    """Whole characters of the prompt and the tokens from `start` up to `end` that they are made of.

    One token as a rule, several where a character is cut between them. importance: the greatest of theirs.
    """

    text: str
    start: int
    end: int
    kept: bool
    special: bool
    importance: float
    heat: int


def explain(
    spec: SpecPrefill,
    token_ids: Sequence[int],
    progress: PrefillProgress | None = None,
    *,
    protected: Protected | None = None,
) -> Explanation:
    """Score a prompt and choose its tokens, without any work of the target. protected: as in a SparseRequest.

    Raises:
        RequestError: the prompt does not fit the draft; with the setting on_error "dense" too.
    """
    plan = spec.plan(token_ids, progress=progress, protected=protected)
    importance, selection, times = plan.importance, plan.selection, plan.report
    if selection is None:  # a guard decided before the draft was asked, or the scorer failed and fails again here
        scored = spec.score(token_ids, progress=progress, protected=protected)
        importance, selection, times = scored.importance, scored.selection, scored
    tokenizer, layer = spec.target.tokenizer, spec.split_of(spec.config)
    protected = protected_of_tokens(tokenizer, token_ids) if protected is None else protected
    special_ids = set(tokenizer.special_tokens.values())
    return Explanation(
        token_ids=token_ids,
        token_bytes=[tokenizer.token_bytes(token_id) for token_id in token_ids],
        special=[token_id in special_ids for token_id in token_ids],
        importance=importance,
        selection=selection,
        report=plan.report,
        times_ms={"score": times.score_ms, "lookahead": times.lookahead_ms, "select": times.select_ms},
        target=spec.target.config.name,
        draft=spec.draft.config.name if layer is None else f"layer {layer} of the model itself",
        own_layers="" if layer is None else f"layers 0 to {layer} of the model ran, on a cache of their own",
        queries=_queries(spec.config, None if layer is not None else spec.draft, protected, len(token_ids)),
        device=spec.target.device.info.name,
    )


def _queries(config: SpecPrefillConfig, draft: Model | None, protected: Protected, num_tokens: int) -> str:
    """Whose rows count. draft: None where the model scores itself."""
    if draft is not None and (steps := lookahead_steps(config, draft)):
        return f"lookahead {steps}"
    count = tail_queries(config, protected, num_tokens)
    if draft is not None:
        count = min(count, score_kind(config, draft).queries)
    return "query of the last token" if count == 1 else f"queries of the last {count} tokens"


def heat_scale(importance: np.ndarray) -> tuple[float, float]:
    """(importance of the lowest heat level and below, of the highest and above).

    The top is the 99th percentile: a few tokens, such as the prompt's first, may have far more than all others.
    """
    top = float(np.percentile(importance, 99))
    top = top if top > 0 else float(importance.max())
    return top / HEAT_RANGE, top


def heat_levels(importance: np.ndarray) -> np.ndarray:
    """int [T], 0 to HEAT_LEVELS - 1: importance on a logarithmic scale."""
    low, top = heat_scale(importance)
    if not low > 0:
        return np.zeros(len(importance), int)
    share = np.log(np.maximum(importance, low) / low) / math.log(HEAT_RANGE)
    return np.minimum((share * HEAT_LEVELS).astype(int), HEAT_LEVELS - 1)


def pieces(explanation: Explanation) -> list[Piece]:
    """The prompt's text in order. A character cut by the border of a kept stretch shows as U+FFFD on both sides."""
    kept, heat, importance = explanation.is_kept, heat_levels(explanation.importance), explanation.importance
    special, num_tokens = explanation.special, explanation.num_tokens
    found: list[Piece] = []
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    start, text = 0, ""
    for t, raw in enumerate(explanation.token_bytes):
        last = t + 1 == num_tokens or kept[t + 1] != kept[t] or special[t + 1] or special[t]
        text += decoder.decode(raw, final=bool(last))
        if last or not decoder.getstate()[0]:
            value, level = float(importance[start : t + 1].max()), int(heat[start : t + 1].max())
            found.append(Piece(visible(text), start, t + 1, bool(kept[t]), bool(special[t]), value, level))
            start, text = t + 1, ""
    return found


def stretches(found: Sequence[Piece]) -> Iterator[tuple[bool, list[Piece]]]:
    """(kept, pieces) of each stretch that is kept or dropped as a whole."""
    for kept, group in groupby(found, key=lambda piece: piece.kept):
        yield kept, list(group)


def marked_text(explanation: Explanation) -> str:
    """The prompt with each dropped stretch as [-text-]."""
    parts = []
    for kept, group in stretches(pieces(explanation)):
        text = "".join(piece.text for piece in group)
        parts.append(text if kept else f"{DROPPED_START}{text}{DROPPED_END}")
    return "".join(parts)


def coloured_text(explanation: Explanation) -> Text:
    """The prompt for a terminal: kept tokens on a background by their heat, dropped ones dim and struck through."""
    text = Text(tab_size=8, end="\n")
    for piece in pieces(explanation):
        style = Style.null()
        if not piece.kept:
            style = DROPPED_STYLE
        elif TERMINAL_HEAT[piece.heat] is not None:
            style = Style(color="black", bgcolor=TERMINAL_HEAT[piece.heat])
        text.append(piece.text, style + SPECIAL_STYLE if piece.special else style)
    return text


def summary(explanation: Explanation) -> str:
    """One line: the status and its reason, what the draft keeps, the main settings, the times."""
    report, kept, total = explanation.report, len(explanation.selection.kept), explanation.num_tokens
    line = f"speculative prefill: {report.status}: {report.reason}; "
    line += "kept" if runs_as_shown(explanation) else "scoring would keep"
    times = ", ".join(f"{name} {duration}" for name, duration in times_text(explanation))
    line += f" {kept} of {total} tokens ({kept / total:.0%}) with {settings_text(explanation)}; {times}"
    return line + (f"; {explanation.own_layers}" if explanation.own_layers else "")


def runs_as_shown(explanation: Explanation) -> bool:
    """Whether the target would run what was chosen; not so where a guard decides for a dense prefill."""
    return explanation.report.status in (guards.ACTIVE, guards.KEPT_ALL)


def settings_text(explanation: Explanation) -> str:
    """The settings that matter most for which tokens are kept."""
    settings = explanation.report.settings
    if settings["keep_ratio"] == 1:
        mode = "keep_ratio 1"
    elif settings["select_mode"] == "mass":
        mode = f"mass {settings['cumulative_mass']:g}"
    else:
        mode = f"keep_ratio {settings['keep_ratio']:g}"
    most = SpecPrefillConfig.from_dict(settings).most_kept
    limit = f", max_keep {most}" if most else ""
    rows = " before their rotary" if settings["rows"] == NOPE else ""
    return f"{mode}{limit}, chunks of {settings['chunk_size']}, {explanation.queries}{rows}"


def times_text(explanation: Explanation) -> list[tuple[str, str]]:
    """(what, time as text) of the dry run's parts, and the estimate of a dense prefill where there is one."""
    times = explanation.times_ms
    found = [("scoring", times["score"]), ("look-ahead", times["lookahead"]), ("selection", times["select"])]
    found = [(name, ms) for name, ms in found if ms or name != "look-ahead"]
    if explanation.report.dense_estimate_ms is not None:
        found.append(("dense prefill about", explanation.report.dense_estimate_ms))
    return [(name, _duration(ms)) for name, ms in found]


def _duration(ms: float) -> str:
    if ms >= 1e3:
        return f"{ms / 1e3:.2f} s"
    return f"{ms:.0f} ms" if ms >= 10 else f"{ms:.1f} ms"


def _floats(values: np.ndarray) -> list[float]:
    """The shortest numbers that read back as the same float32 values."""
    return [float(str(value)) for value in np.asarray(values, np.float32)]
