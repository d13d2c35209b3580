"""The methods that are compared: which of a prompt's tokens each of them runs.

The controls keep exactly as many tokens as the draft's choice, its forced tokens among them: what is compared is where
the rest lies.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from vkprefill.display import printable
from vkprefill.errors import RequestError
from vkprefill.evaluation.task import Task
from vkprefill.specprefill.layout import layout_of
from vkprefill.specprefill.protection import Protected, protected_of_tokens, tail_queries
from vkprefill.specprefill.selection import Selection, boost, normalise, select
from vkprefill.specprefill.setting_types import read
from vkprefill.specprefill.settings import SpecPrefillConfig
from vkprefill.specprefill.unused import OF_DRAFT, OF_SELF, Use, unused_by_all
from vkprefill.text.tokenizer import Tokenizer

DENSE, DRAFT, SELF, CHECKED = "dense", "draft", "self", "checked"
RANDOM, ENDS, DENSE_STATE = "random", "ends", "dense-state"
METHODS = {
    DENSE: "the whole prompt",
    DRAFT: "speculative prefill: the tokens that the draft chooses",
    SELF: "speculative prefill without a draft: what an early layer chooses; it and those before it see all",
    CHECKED: "an answer of draft, of self, or of both where both are compared, checked and revised: the dense one",
    RANDOM: "control: as many tokens, in random chunks",
    ENDS: "control: as many tokens, in the first and last chunks",
    DENSE_STATE: "control: dense prefill, then attention sees the chosen tokens only (recurrent layers have seen all)",
}
SCORING = (
    "lookahead",
    "pool_size",
    "score_layers",
    "score_depth",
    "rows",
    "tail_queries",
    "window",
    "draft_context",
)  # settings that importance depends on
BUDGET = ("select_mode", "keep_ratio", "cumulative_mass")  # set by the grid
CHECKS = ("check", "on_mismatch", "check_share", "check_idle")  # settings that method "checked" has its own values of
FORCE_QUESTION = "force_question"


@dataclass(frozen=True)
class Variant:
    """Settings to compare. label: empty for those of the command line, else what differs from them.

    force_question: the chunks that hold the question are kept in any case too, and count.
    """

    label: str
    config: SpecPrefillConfig
    force_question: bool = False

    @property
    def scoring(self) -> tuple[object, ...]:
        """Equal for variants that share the scores of a draft, or of a layer of the model itself."""
        layer = self.config.score_layer if self.config.scorer == SELF else None
        return (layer, *(getattr(self.config, name) for name in SCORING))

    def seen_by(self, method: str) -> tuple[object, ...]:
        """Equal for variants that are the same to a method."""
        defaults = SpecPrefillConfig()
        unused = OF_DRAFT if self.by_own_layer(method) else OF_SELF
        return replace(self.config, **{name: getattr(defaults, name) for name in unused}), self.force_question

    def by_own_layer(self, method: str) -> bool:
        """Whether a method leaves the choice to a layer of the model itself."""
        return method == SELF or (method == CHECKED and self.config.scorer == SELF)

    def by_layer(self, layer: int) -> Variant:
        """Scored by this layer of the model itself."""
        config = replace(self.config, scorer="self", score_layer=layer)
        return replace(self, label=f"layer {layer} {self.label}".strip(), config=config)


def layer_of(label: str) -> tuple[int, str]:
    """(layer, label of the other settings) of a variant that a layer of the model itself scores."""
    _, layer, *rest = label.split(" ", 2)
    return int(layer), "".join(rest)


@dataclass(frozen=True)
class Budget:
    """How much is kept: a share of the chunks (mode "chunk"), or chunks with a share of the importance ("mass")."""

    mode: str
    share: float

    @property
    def label(self) -> str:
        return f"{'mass ' if self.mode == 'mass' else ''}{self.share * 100:g} %"

    def apply(self, config: SpecPrefillConfig) -> SpecPrefillConfig:
        name = "keep_ratio" if self.mode == "chunk" else "cumulative_mass"
        return replace(config, select_mode=self.mode, **{name: self.share})


def uses_of(methods: Sequence[str], variants: Sequence[Variant]) -> list[Use]:
    """What the settings of variants are used for. RequestError for a variant with one that no method has a part for."""
    pruning = [method for method in methods if method != DENSE]
    scorers = {SELF if one.by_own_layer(method) else DRAFT for one in variants for method in pruning}
    dense = Use(None, f"method {DENSE} runs every token", guarded=False)
    uses = [Use(scorer, guarded=False) for scorer in sorted(scorers)] or [dense]
    for variant in variants[1:]:
        for name, why in unused_by_all(variant.config, uses).items():
            if name not in BUDGET:
                raise RequestError(f"--variant {printable(variant.label)}: {name} has no part, {why}")
    return uses


def read_variant(text: str, base: Variant) -> Variant:
    """The base with other settings, "window=512" or "lookahead=3,pool_size=1". RequestError for a bad name or value."""
    kinds = {
        setting.name: setting.metadata["kind"] for setting in fields(SpecPrefillConfig) if setting.name not in BUDGET
    }
    changes, force = {}, base.force_question
    parts: list[str] = []
    for part in text.split(","):  # a part without "=" belongs to the list before it
        if "=" in part or not parts:
            parts.append(part)
        else:
            parts[-1] += f",{part}"
    for part in parts:
        name, equals, value = part.strip().partition("=")
        if name == FORCE_QUESTION and value in ("yes", "no"):
            force = value == "yes"
        elif name in CHECKS:
            raise RequestError(f"--variant: found {printable(part)}, checking answers is a method: --methods {CHECKED}")
        elif name == "scorer":
            raise RequestError(f"--variant: found {printable(part)}, who scores is a method: --methods draft,self")
        elif name in kinds and equals:
            changes[name] = read(name, kinds[name], value)
        else:
            raise RequestError(
                f"--variant: found {printable(part)}, wanted NAME=VALUE[,...]: {FORCE_QUESTION}=yes or no, or a "
                f"setting of speculative prefill other than {', '.join(BUDGET)}"
            )
    return Variant(text, base.config.having(changes, given=changes), force)


def choose(importance: np.ndarray, task: Task, variant: Variant, budget: Budget, tokenizer: Tokenizer) -> Selection:
    """The choice that SpecPrefill makes, with the question's chunks protected too where the variant says so."""
    config, ids = budget.apply(variant.config), task.token_ids
    found = _protected(task, tokenizer)
    protected = found.ranges(config, len(ids))
    if variant.force_question:
        protected += ((task.question_at // config.chunk_size * config.chunk_size, len(ids)),)
    values = boost(normalise(importance, config.normalize), config)
    layout = layout_of(tokenizer, ids) if config.chunk_align == "lines" else None
    return select(values, config, layout=layout, protected=protected, besides=found.opening)


def queries_of(task: Task, variant: Variant, tokenizer: Tokenizer) -> int:
    """Last prompt tokens that are queries where the draft stops early."""
    return tail_queries(variant.config, _protected(task, tokenizer), len(task.token_ids))


def _protected(task: Task, tokenizer: Tokenizer) -> Protected:
    return protected_of_tokens(tokenizer, task.token_ids) if task.protected is None else task.protected


def random_chunks(selection: Selection, rng: random.Random) -> np.ndarray:
    """As many tokens as a selection keeps: the forced ones, and chunks in random order."""
    order = list(range(len(selection.chunk_scores)))
    rng.shuffle(order)
    return _fill(selection, order)


def end_chunks(selection: Selection) -> np.ndarray:
    """As many tokens as a selection keeps: the forced ones, and in turn the first chunk, the last, the second, ..."""
    count = len(selection.chunk_scores)
    return _fill(selection, [i // 2 if i % 2 == 0 else count - 1 - i // 2 for i in range(count)])


def _fill(selection: Selection, order: list[int]) -> np.ndarray:
    """Positions int32 [K], rising: the forced tokens and chunks in this order; of the last only what is missing."""
    keep = np.zeros(selection.chunk_bounds[-1], bool)
    keep[selection.forced] = True
    for chunk in order:
        missing = len(selection.kept) - int(keep.sum())
        tokens = np.arange(*selection.chunk_bounds[chunk : chunk + 2])
        keep[tokens[~keep[tokens]][:missing]] = True
    return np.flatnonzero(keep).astype(np.int32)
