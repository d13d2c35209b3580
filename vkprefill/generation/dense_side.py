"""The dense side of a check: the whole prompt and its answer on a cache of its own, in steps of one run of the engine.

The runs are those of an answer that was never sparse, chunk for chunk and mark for mark, so its bits are too.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from vkprefill.drafting.drafters import Drafting
from vkprefill.engine.cache import Cache
from vkprefill.engine.kept_rows import KEPT
from vkprefill.engine.model import Model
from vkprefill.engine.prompt_cache import PromptCache
from vkprefill.engine.sizes import PAGE, num_pages
from vkprefill.generation.options import AnswerOptions, Hooks
from vkprefill.generation.parts import GenerationPart
from vkprefill.generation.steps import Timings
from vkprefill.generation.tokens import dense_plan, stream_tokens
from vkprefill.specprefill.plan import NoRoomForCheck
from vkprefill.work import Pause, Work


class AsEmitted(Drafting):
    """Drafts what was emitted, which is how it is verified; where there is no more of it, as `then` does.

    emitted: tokens of the answer so far, a list that may grow; num_rows: of the prompt; left: tokens that will come of
    the round begun last without another run; verified: of all rounds, drafts that were emitted tokens.
    """

    def __init__(self, emitted: Sequence[int | None], num_rows: int, then: Drafting) -> None:
        super().__init__()
        self._emitted, self._num_rows, self._then = emitted, num_rows, then
        self.left = 0
        self._verifies = False

    def propose(self, token_id: int, cache: Cache, most: int) -> list[int]:
        known = len(cache) - self._num_rows + 1  # with token_id
        self._verifies = known < len(self._emitted)
        if not self._verifies:
            return self._then.propose(token_id, cache, most)
        # the last one is compared with what is drawn after those before, and need not be run
        drafted = self._emitted[known : len(self._emitted) - 1][: min(most, KEPT - 1)]
        self.left = len(drafted) + 1
        return list(drafted)

    def note(self, drafted: int, accepted: int, seconds: float) -> None:
        if not self._verifies:
            self._then.note(drafted, accepted, seconds)


class DenseSide:
    """See the module. prompts: an empty cache, or one with marks of the same conversation; source: another one with
    such marks (None: there is none); places: from the length of the beginning that is gone on from to the places where
    to mark the rest.
    """

    def __init__(
        self,
        model: Model,
        prompts: PromptCache,
        token_ids: Sequence[int],
        options: AnswerOptions,
        hooks: Hooks,
        *,
        source: PromptCache | None = None,
        places: Callable[[int], Sequence[int]] = lambda start: (),
    ) -> None:
        self._model, self._prompts, self._ids, self._options = model, prompts, list(token_ids), options
        self._hooks, self._source, self._places = hooks, source, places
        self.cache = prompts.cache
        self.timings = Timings()
        self.prefilled = False  # all but the last run
        self.unattended = False  # nobody waits for it: no hooks are called
        self._drafting: AsEmitted | None = None

    def give_back(self) -> None:
        """The memory of what was run."""
        self._prompts.reset()

    def room_wanted(self, other: Cache, kept: int) -> str | None:
        """What is wanted for the whole prompt here, beside so many more tokens in the other cache; None: it is there.
        Idle caches make room.
        """
        tokens, most = len(self._ids), self.cache.max_context
        if tokens >= most:
            return f"the whole prompt has {tokens} tokens, the context holds {most}, the answer included"
        pages = (
            num_pages(tokens + 1) - len(self.cache.pages) + num_pages(other.length_after(kept) + 1) - len(other.pages)
        )
        if not self._has_free(pages):
            free = len(self.cache.pool.free_pages) * PAGE
            return (
                f"no room for a second cache: memory for {pages * PAGE} tokens wanted, for {free} is free; "
                "wanted a larger context (-c)"
            )
        return None

    def require_room(self, other: Cache, kept: int) -> None:
        """NoRoomForCheck where there is none; see room_wanted."""
        if reason := self.room_wanted(other, kept):
            raise NoRoomForCheck(f"check: {reason}")

    def leaves_room(self, other: Cache) -> bool:
        """Whether the other cache can run a round more."""
        return self._has_free(num_pages(len(other) + KEPT) - len(other.pages))

    def has_spare_room(self) -> bool:
        """Whether another run has room without any idle cache making it."""
        rows = len(self.cache) + max(KEPT, self._model.runner.tokens_per_run(len(self.cache)))
        return num_pages(min(rows, self.cache.max_context)) - len(self.cache.pages) <= len(self.cache.pool.free_pages)

    def _has_free(self, pages: int) -> bool:
        pool = self.cache.pool
        if pages > len(pool.free_pages) and pool.on_full is not None:
            pool.on_full(pages)
        return pages <= len(pool.free_pages)

    def prefill(self) -> Work[None]:
        """Runs the prompt up to what `answer` begins with."""
        prompts, source, ids = self._prompts, self._source, self._ids
        mark, other = prompts.find(ids), source.find(ids) if source else None
        if other is None or mark is not None and mark.length >= other.length:
            prompts.go_back(mark)
        else:
            prompts.start_from(source, other)
        yield Pause.SLICE
        for place in self._places(len(self.cache)):
            while len(self.cache) < place:
                self._run(place)
                yield Pause.SLICE
            prompts.note(ids[len(prompts.prompt) : place])
            prompts.mark()
        while len(ids) - len(self.cache) > self._model.runner.tokens_per_run(len(self.cache)):
            self._run(len(ids))
            yield Pause.SLICE
        self.prefilled = True

    def _run(self, end: int) -> None:
        """The next chunk of tokens before `end`."""
        start = len(self.cache)
        stop = min(end, start + self._model.runner.tokens_per_run(start))
        self._model.extend(self._ids[start:stop], self.cache, progress=self._progress)

    def _progress(self, done: int, total: int) -> None:
        if self._hooks.checking and not self.unattended:
            self._hooks.checking(min(len(self._ids), len(self.cache) + done), len(self._ids))

    def show_progress(self) -> None:
        self._progress(0, 0)

    def answer(self, emitted: Sequence[int | None]) -> Generator[GenerationPart, None, None]:
        """The dense answer, after `prefill`. emitted: tokens of the sparse one, a list that may grow: they are verified
        in runs of at most KEPT tokens.
        """

        def drafting(then: Drafting) -> Drafting:
            self._drafting = AsEmitted(emitted, len(self._ids), then)
            return self._drafting

        hooks = Hooks(progress=self._progress, make_sampler=self._hooks.make_sampler, drafting=drafting)
        plan = dense_plan(len(self._ids), len(self.cache))
        return stream_tokens(self._model, self._ids, self.cache, plan, self._options, hooks, self.timings)

    def round_over(self) -> bool:
        """To be called after each part: whether the next one begins with a run of the engine."""
        self._drafting.left -= 1
        return self._drafting.left <= 0
