"""A cache with a memory of prompts: which beginning of a new prompt need not be run again.

Recurrent state cannot be cut back, so a prompt can only go on from where a state exists: the cache as it stands, or a mark (a snapshot with
the prompt it stands for). A sparse state has fewer cached rows than prompt tokens; it is never taken for an exact one.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vkprefill.cache import Cache, Snapshot
from vkprefill.errors import OutOfMemoryError

MAX_MARKS = 3  # of the last turns: history is edited near its end


@dataclass
class _Mark:
    prompt: list[int]
    exact: bool
    snapshot: Snapshot


class PromptCache:
    """prompt: the tokens the cache stands for, those a sparse prefill left out included; exact: whether it left out none."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.prompt: list[int] = []
        self.exact = True
        self._rows = 0  # of the cache that stand for `prompt`
        self._marks: list[_Mark] = []

    def go_back(self, prompt: Sequence[int], *, exact_only: bool) -> int:
        """Bring the cache to the longest beginning of `prompt` that has a state and leaves at least one token to run; its length.

        exact_only: do not go on from a sparse state.
        """
        def fits(known: list[int], exact: bool) -> bool:
            return len(known) < len(prompt) and (exact or not exact_only) and list(prompt[: len(known)]) == known

        usable = [m for m in self._marks if not m.snapshot.stale and fits(m.prompt, m.exact)]
        best = max(usable, key=lambda m: len(m.prompt), default=None)
        intact = not self.cache.broken and len(self.cache) == self._rows
        if intact and fits(self.prompt, self.exact) and (best is None or len(self.prompt) >= len(best.prompt)):
            return len(self.prompt)
        if best is None:
            self.reset()
        else:
            self.cache.restore(best.snapshot)
            self.prompt, self.exact, self._rows = list(best.prompt), best.exact, len(self.cache)
        return len(self.prompt)

    def note(self, tokens: Sequence[int], *, exact: bool = True) -> None:
        """The cache, as it is now, stands for these further prompt tokens; what is run and not noted does not count."""
        self.prompt += [int(t) for t in tokens]
        self._rows = len(self.cache)
        self.exact = self.exact and exact

    def mark(self) -> None:
        """Make this point one to go back to; without memory for it a later prompt starts further back, which is slower but right."""
        self._marks = [m for m in self._marks if not m.snapshot.stale][-(MAX_MARKS - 1) :]
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
