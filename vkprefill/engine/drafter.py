"""Drafts of a model's multi-token-prediction block: the tokens that may come next, for the trunk to verify.

A chain of rows runs on the device without a word from the host: each row's best token and hidden row go into the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral, Real

import numpy as np

from vkprefill.checks import MOST_INTEGER, check_number
from vkprefill.display import printable
from vkprefill.engine.cache import Cache
from vkprefill.engine.draft_head import ChosenIds, DraftHead
from vkprefill.engine.runner import Runner
from vkprefill.engine.sizes import DRAFT_CANDIDATES, HEAD_ROWS
from vkprefill.errors import RequestError
from vkprefill.vulkan.program import Program

NO_BLOCK = (
    "was loaded without a multi-token-prediction block; wanted a file with one, or a companion file that holds it "
    "(mtp=FILE, -md FILE)"
)


class Drafter:
    """Drafts for one model, by its runner.

    head_rows: of the vocabulary's first tokens that a draft may be, 0 for all; always: tokens beyond them that it may
    be too, beside those in the cache. Programs are recorded when they are first needed. Raises RequestError where the
    model has no multi-token-prediction block.
    """

    def __init__(self, runner: Runner, head_rows: int = HEAD_ROWS, always: Iterable[int] = ()) -> None:
        if runner.mtp is None:
            raise RequestError(f"drafts: {printable(runner.config.name)} {NO_BLOCK}")
        self._runner, self.head_rows = runner, head_rows
        self._head = DraftHead.cut(runner.mtp.shared_head_head, head_rows)
        self._ids = ChosenIds(self._head.first.rows, self._head.num_ids, always)
        self._programs: dict[int, Program] = {}

    def draft(self, token_id: int, cache: Cache, count: int, p_min: float = 0.0) -> list[int]:
        """At most `count` tokens that may follow token_id, which is the last one known and not in the cache yet.

        They end before the first whose probability among the best few is below p_min. There are fewer where the cache
        has no room to verify more. The cache stays as it is. Raises RequestError for a bad token, cache, count or
        p_min.
        """
        check_number("count", count, Integral, 0, MOST_INTEGER)
        check_number("p_min", p_min, Real, 0, 1)
        run = self._runner
        with run.turn:
            count = run.begin_drafts(token_id, cache, count, DRAFT_CANDIDATES if p_min > 0 else 1)
            if not count:
                return []
            run.scratch.draft_ids.view()[: self._head.num_ids] = self._ids.of(cache)
            self._program(count).run()
            return self._likely(count, p_min)

    def _program(self, count: int) -> Program:
        if count not in self._programs:
            self._programs[count] = self._runner.forward.record_drafts(count, self._head)
        return self._programs[count]

    def _likely(self, count: int, p_min: float) -> list[int]:
        """Tokens of the chain that ran, up to the first that is not likely, or whose logit is not finite."""
        found = self._runner.scratch.drafts.view()[:count].copy()
        logits, tokens = found[:, :, 0].view(np.float32), found[:, 0, 1]
        drafts: list[int] = []
        for row, token in zip(logits, tokens.tolist(), strict=True):
            if not np.isfinite(row[0]) or p_min > 0 and 1 / np.exp(row - row[0], dtype=np.float64).sum() < p_min:
                break
            drafts.append(token)
        return drafts
