"""A conversation's second cache, where its sparse answers are checked, and the check that an answer left pending."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from functools import partial

from vkprefill.engine.model import Model
from vkprefill.engine.prompt_cache import PromptCache
from vkprefill.errors import VkPrefillError
from vkprefill.generation.checked import CheckedAnswer
from vkprefill.generation.dense_side import DenseSide
from vkprefill.generation.marks import mark_places
from vkprefill.generation.options import AnswerOptions, Hooks
from vkprefill.generation.pruned import PrunedTurn
from vkprefill.specprefill.plan import CHECK_DIFFERS, CHECK_EQUAL, Plan
from vkprefill.specprefill.settings import SpecPrefillConfig

log = logging.getLogger("vkprefill")


class SessionCheck:
    """prompts: of the conversation, which becomes the dense side's where a check comes to its end; late: of checks that
    had been pending, how often each status came out.
    """

    def __init__(self, model: Model, prompts: PromptCache) -> None:
        self._model, self._prompts = model, prompts
        self._beside = PromptCache(model.new_cache(prompts.cache.max_context))
        self._pending: tuple[CheckedAnswer, PrunedTurn] | None = None
        self.late: Counter[str] = Counter()

    def begin(
        self, token_ids: Sequence[int], plan: Plan, config: SpecPrefillConfig, options: AnswerOptions, hooks: Hooks
    ) -> CheckedAnswer | None:
        """A check of the answer that is about to be made; None where there is no room for it. One that is pending is
        given up, but this one goes on from what it has run. options: with a seed.
        """
        self._stop()
        tokenizer = self._model.tokenizer

        def places(start: int) -> list[int]:
            return mark_places(token_ids, options.mark_at, start, tokenizer)

        dense = DenseSide(self._model, self._beside, token_ids, options, hooks, source=self._prompts, places=places)
        on_switch = partial(self._prompts.take_over, self._beside)
        check = None
        try:
            check = CheckedAnswer.of(dense, self._prompts.cache, plan, config, options, hooks, on_switch)
            return check
        finally:
            if check is None:
                self.drop()

    def require_room(self, token_ids: Sequence[int], kept: int, options: AnswerOptions, hooks: Hooks) -> None:
        """NoRoomForCheck where a check of an answer that takes so many more tokens in its cache could not begin."""
        DenseSide(self._model, self._beside, token_ids, options, hooks).require_room(self._prompts.cache, kept)

    def is_switched(self, check: CheckedAnswer) -> bool:
        """Whether the conversation's cache is the dense one."""
        return self._prompts.cache is check.dense.cache

    def end(self, check: CheckedAnswer, turn: PrunedTurn, goes_on: bool) -> None:
        """The answer has ended, somehow. goes_on: a check that is pending is for `step` from now on."""
        if check.pending and goes_on:
            self._pending = check, turn
        else:
            check.close()
            self._beside.reset()

    def step(self) -> bool:
        """One step of a check that is pending; False where there is nothing more to do."""
        if self._pending is None:
            return False
        pending, self._pending = self._pending, None  # what makes room meanwhile must not give up this one
        check, turn = pending
        try:
            if check.step():
                self._pending = pending
                return True
            if check.status in (CHECK_EQUAL, CHECK_DIFFERS):
                self._adopt(turn)
            self.late[check.status] += 1
        except VkPrefillError as error:
            log.warning("check: %s; given up", error)
        finally:
            if self._pending is None:
                check.close()
                self._beside.reset()
        return False

    def _adopt(self, turn: PrunedTurn) -> None:
        """The conversation goes on from the dense side: its prompt, and as much of the answer as is the same."""
        prompts, ids = self._prompts, turn.token_ids
        prompts.take_over(self._beside)
        prompts.note(ids[len(prompts.prompt) :])
        prompts.note(prompts.cache.token_ids[len(ids) :])
        prompts.mark()
        prompts.settled = turn.history_n

    def _stop(self) -> None:
        if self._pending is not None:
            check, self._pending = self._pending[0], None
            check.close()

    def give_up_pending(self) -> None:
        """Give up a check that is pending, and the memory, but none of an answer in the making."""
        if self._pending is not None:
            self.drop()

    def drop(self) -> None:
        """Give up any check, and the memory."""
        self._stop()
        self._beside.reset()

    def close(self) -> None:
        self._stop()
        self._beside.close()
