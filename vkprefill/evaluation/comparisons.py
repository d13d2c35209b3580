"""What is run of each task: methods, with the budgets and variants that each of them has a part for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from vkprefill.evaluation.methods import CHECKED, DENSE, DENSE_STATE, DRAFT, SELF, Budget, Variant
from vkprefill.gguf.config import ModelConfig
from vkprefill.specprefill.self_scorer import scoring_layer


class Comparisons:
    """methods and budgets; compared: (sparse method, variant), each that differs from all before it.

    The controls are run for the first variant only; the others only by the draft's choice and the model's own, checked
    or not. self_layers: those that score for method self, for variants that name none (None: the setting's default).
    Where there is no draft, the controls keep as many tokens as the model's own choice. Raises RequestError for a layer
    that cannot score.
    """

    def __init__(
        self,
        config: ModelConfig,
        has_draft: bool,
        methods: Sequence[str],
        budgets: Sequence[Budget],
        variants: Sequence[Variant],
        self_layers: Sequence[int] | None = None,
    ) -> None:
        self.methods, self.budgets, self.variants = methods, budgets, variants
        self._config = config
        self.compared = [*self._comparisons(self_layers, has_draft)]

    def _comparisons(self, self_layers: Sequence[int] | None, has_draft: bool) -> Iterator[tuple[str, Variant]]:
        checked = [method for method in (DRAFT, SELF) if method in self.methods] or [DRAFT if has_draft else SELF]
        choosers, seen = {SELF: [SELF], CHECKED: checked}, set()
        for number, variant in enumerate(self.variants):
            for method in self.methods:
                if method == DENSE or (number and method not in (DRAFT, SELF, CHECKED)):
                    continue
                for chooser in choosers.get(method, [DRAFT]):
                    for one in self._by_layers(variant, self_layers) if chooser == SELF else [variant]:
                        if (key := (method, one.seen_by(method))) not in seen:
                            seen.add(key)
                            yield method, one

    def _by_layers(self, variant: Variant, self_layers: Sequence[int] | None) -> list[Variant]:
        """With each layer that is to score. RequestError for one that cannot, before hours of work."""
        given = None if variant.config.score_layer is not None else self_layers
        layers = given or [scoring_layer(variant.config, self._config)]
        found = [variant.by_layer(layer) for layer in layers]
        for one in found:
            scoring_layer(one.config, self._config)
        return found

    @property
    def names(self) -> list[str]:
        """What is run of each task, with the settings that it depends on."""
        sparse = itertools.product(self.budgets, self.compared)
        return [m for m in (DENSE, DENSE_STATE) if m in self.methods] + [
            f"{method} {budget.label} {sorted(budget.apply(v.config).choice.as_dict().items())} {v.force_question}"
            for budget, (method, v) in sparse
        ]

    @property
    def runs_per_task(self) -> int:
        return (DENSE in self.methods) + len(self.budgets) * len(self.compared)
