"""What came of a run of a few tokens, of which only the first may turn out to be wanted."""

from __future__ import annotations

import numpy as np

from vkprefill.engine.cache import Cache
from vkprefill.engine.runner import Runner
from vkprefill.engine.step_input import Best


class Rows:
    """Results of a run, token by token. Taking one makes its token part of the cache; those that are not taken never
    were run, as far as the cache goes.
    """

    def __init__(self, runner: Runner, cache: Cache, token_ids: list[int], best: Best | None) -> None:
        """Runs the tokens. best: see Model.run_rows."""
        self._runner, self._cache, self._best, self._taken = runner, cache, best, 0
        results = runner.scratch.candidates if best else runner.scratch.logits

        def read() -> np.ndarray:
            return results.view()[: len(token_ids)].copy()

        self._results = runner.run_rows(token_ids, cache, read, best=best)
        self._undecided = runner.pool.kept.ids

    @property
    def open(self) -> bool:
        """Whether there is another one to take: not once anything else has run on the model."""
        kept, live = self._runner.pool.kept, self._runner.pool.live()
        return bool(self._undecided) and self._undecided is kept.ids and live is self._cache

    def take(self) -> tuple[np.ndarray, np.ndarray]:
        """(ids int64 [k], logits float32 [k]) of what may follow the next token of the run, best first; of the whole
        vocabulary in order where no best were asked for. VkPrefillError where a logit is not finite.
        """
        row = self._results[self._taken]
        found = self._best.unpacked(row) if self._best else (np.arange(len(row)), row)
        self._runner.finite(found[1], "logits")
        self._runner.accept(self._cache, 1)
        self._taken += 1
        return found
