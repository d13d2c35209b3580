"""A cache with a memory of prompts: which beginning of a new prompt need not be run again.

Recurrent state cannot be cut back, so a prompt can only go on from where a state exists: the cache as it stands, or a
mark (a snapshot with the prompt it stands for). A sparse state has fewer cached rows than prompt tokens; it is never
taken for an exact one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vkprefill.engine.cache import Cache, Snapshot
from vkprefill.errors import OutOfMemoryError

MAX_MARKS = (
    4  # the first, which other conversations may share, and those of the last turns: history is edited near its end
)


@dataclass
class _Mark:
    prompt: list[int]
    exact: bool
    snapshot: Snapshot


class PromptCache:
    """prompt: the tokens the cache stands for, those a sparse prefill left out included; exact: whether it left out
    none.
    """

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.prompt: list[int] = []
        self.exact = True
        self._rows = 0  # of the cache that stand for `prompt`
        self._marks: list[_Mark] = []

    def reach(self, prompt: Sequence[int], *, exact_only: bool) -> int:
        """How long a beginning of `prompt` go_back would find. Changes nothing."""
        stands, best = self._find(prompt, exact_only)
        return len(self.prompt) if stands else len(best.prompt) if best else 0

    def go_back(self, prompt: Sequence[int], *, exact_only: bool) -> int:
        """Bring the cache to the longest beginning of `prompt` that has a state and leaves a token to run; its length.

        exact_only: do not go on from a sparse state.
        """
        stands, best = self._find(prompt, exact_only)
        if stands:
            return len(self.prompt)
        if best is None:
            self.reset()
        else:
            self.cache.restore(best.snapshot)
            self.prompt, self.exact, self._rows = list(best.prompt), best.exact, len(self.cache)
        return len(self.prompt)

    def _find(self, prompt: Sequence[int], exact_only: bool) -> tuple[bool, _Mark | None]:
        """Whether to go on from the cache as it stands, and the best mark."""

        def fits(known: list[int], exact: bool) -> bool:
            return len(known) < len(prompt) and (exact or not exact_only) and list(prompt[: len(known)]) == known

        usable = [m for m in self._marks if not m.snapshot.stale and fits(m.prompt, m.exact)]
        best = max(usable, key=lambda m: len(m.prompt), default=None)
        intact = not self.cache.broken and len(self.cache) == self._rows
        stands = intact and fits(self.prompt, self.exact) and (best is None or len(self.prompt) >= len(best.prompt))
        return stands, best

    def start_from(self, other: PromptCache, prompt: Sequence[int], *, exact_only: bool) -> int:
        """Forget everything and begin with the longest beginning of `prompt` that another one has a mark of; its
        length, 0 without one.
        """
        self.reset()
        _, mark = other._find(prompt, exact_only)
        if mark is None or not mark.prompt:
            return 0
        try:
            self.cache.start_from(other.cache, mark.snapshot)
        except OutOfMemoryError:
            self.reset()
            return 0
        self.prompt, self.exact, self._rows = list(mark.prompt), mark.exact, len(self.cache)
        self.mark()
        return len(self.prompt)

    def note(self, tokens: Sequence[int], *, exact: bool = True) -> None:
        """The cache, as it is now, stands for these further prompt tokens; what is run and not noted does not count."""
        self.prompt += [int(t) for t in tokens]
        self._rows = len(self.cache)
        self.exact = self.exact and exact

    def mark(self) -> None:
        """Make this point one to go back to; without memory for it a later prompt starts further back, which is slower
        but right.
        """
        marks = [m for m in self._marks if not m.snapshot.stale]
        self._marks = marks[:1] + marks[1:][-(MAX_MARKS - 2) :]
        try:
            self._marks.append(_Mark(list(self.prompt), self.exact, self.cache.snapshot()))
        except OutOfMemoryError:
            pass

    def reset(self) -> None:
        self._drop_marks()
        self.cache.reset()
        self.prompt, self.exact, self._rows = [], True, 0

    def close(self) -> None:
        self._drop_marks()
        self.cache.close()

    def _drop_marks(self) -> None:
        for mark in self._marks:
            mark.snapshot.free()
        self._marks.clear()
