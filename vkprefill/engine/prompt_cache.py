"""A cache with a memory of prompts: which beginning of a new prompt need not be run again.

Recurrent state cannot be cut back, so a prompt can only go on from a mark: a snapshot with the tokens it stands for.
Where tokens were left out (by a sparse prefill), a mark says so, and whoever asks decides whether that will do; what
lacks nothing is preferred.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vkprefill.engine.cache import Cache, Snapshot
from vkprefill.errors import OutOfMemoryError

MAX_MARKS = 12
MARKS_ON_DEVICE = 2  # of the conversation in use: the next turn goes on from one of the last


@dataclass(eq=False)
class Mark:
    """A point that a prompt can go on from: the first `length` tokens of it, of which some were run into the cache.

    lacks: what the maker noted about what was left out; None: nothing was.
    """

    length: int
    lacks: object | None
    snapshot: Snapshot
    cache: Cache

    @property
    def positions(self) -> list[int]:
        """Of the tokens that all layers have run."""
        point = self.snapshot.point
        if point.split is None:
            return self.cache.positions[: point.length]
        return self.cache.late_positions[: point.late_length]


MayUse = Callable[[Mark], bool]
"""Whether a prompt may go on from a mark that lacks something."""


def nothing_lacking(mark: Mark) -> bool:
    return False


class PromptCache:
    """prompt: the tokens the cache stands for, those left out included; lacks: as for a Mark.

    settled: tokens of the history, which the next turn will repeat; last_used: when, by the clock of its store;
    num_wanted: tokens of the prompt that it was last chosen for.
    """

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.prompt: list[int] = []
        self.lacks: object | None = None
        self.last_used = self.settled = self.num_wanted = 0
        self.marked: Callable[[], None] = lambda: None  # called when a mark took memory
        self._marks: list[Mark] = []  # of rising length, each a beginning of the prompt

    @property
    def marks(self) -> Sequence[Mark]:
        return self._marks

    def find(self, prompt: Sequence[int], may_use: MayUse = nothing_lacking) -> Mark | None:
        """The mark with the longest beginning of `prompt` that leaves a token to run; of two, the one that lacks
        nothing.
        """
        most = min(common_length(prompt, self.prompt), len(prompt) - 1)
        fits = (m for m in self._marks if m.length <= most and not m.snapshot.stale and (m.lacks is None or may_use(m)))
        return max(fits, key=preference, default=None)

    def go_back(self, mark: Mark | None) -> int:
        """Bring the cache to one of its marks, or to its beginning; the length."""
        if mark is None:
            self.reset()
            return 0
        if self.cache.broken or self.cache.ahead or len(self.cache) != mark.snapshot.length:
            self.cache.restore(mark.snapshot)
        self._drop([m for m in self._marks if m.length > mark.length])
        del self.prompt[mark.length :]
        self.lacks = mark.lacks
        return mark.length

    def start_from(self, other: PromptCache, mark: Mark) -> bool:
        """Forget everything and begin at another one's mark, which keeps it. False, and empty, without memory."""
        self.reset()
        try:
            self.cache.start_from(other.cache, mark.snapshot)
        except OutOfMemoryError:
            self.reset()
            return False
        self.prompt, self.lacks = other.prompt[: mark.length], mark.lacks
        self.mark()
        return True

    def take_over(self, other: PromptCache) -> None:
        """Become what another one is, which is empty afterwards. What this one remembered is forgotten."""
        self.reset()
        taken = other.cache, other.prompt, other.lacks, other._marks
        other.cache, other.prompt, other.lacks, other._marks = self.cache, [], None, []
        self.cache, self.prompt, self.lacks, self._marks = taken
        self.marked()

    def note(self, tokens: Sequence[int], lacks: object | None = None) -> None:
        """The cache, as it is now, stands for these further prompt tokens. lacks: what is missing of them; what was
        missing before stays so.
        """
        self.prompt += [int(t) for t in tokens]
        self.lacks = lacks or self.lacks

    def mark(self) -> None:
        """Make this point one to go back to."""
        if not len(self.cache):
            return
        self._drop([m for m in self._marks if m.length >= len(self.prompt)])
        try:
            snapshot = self.cache.snapshot(before=len(self.prompt))
        except OutOfMemoryError:
            snapshot = self.cache.snapshot(on_host=True, before=len(self.prompt))
        self._marks.append(Mark(len(self.prompt), self.lacks, snapshot, self.cache))
        for mark in self._marks[:-MARKS_ON_DEVICE]:
            mark.snapshot.to_host()
        self.marked()
        if len(self._marks) > MAX_MARKS:  # never the first, which other conversations may share, nor the last
            self._drop([min(self._marks[1:-1], key=self.gap)])

    def lengths(self, most: int) -> list[int]:
        """Of the marks of at most so many tokens that lack nothing."""
        return [m.length for m in self._marks if m.length <= most and m.lacks is None and not m.snapshot.stale]

    def num_after(self, start: int) -> int:
        """Tokens of the prompt from here on."""
        return len(self.prompt) - start

    def gap(self, mark: Mark) -> int:
        """Tokens that would have to be run again without this mark."""
        before = self._marks[: self._marks.index(mark)]
        return mark.length - (before[-1].length if before else 0)

    def drop(self, mark: Mark) -> None:
        self._drop([mark])

    def park(self) -> None:
        """Take no memory on the device but pages: all marks go to the host, and the live state is given up."""
        for mark in self._marks:
            mark.snapshot.to_host()
        self.cache.let_go()

    def reset(self) -> None:
        self._drop(self._marks)
        self.cache.reset()
        self.prompt, self.lacks, self.settled = [], None, 0

    def close(self) -> None:
        self._drop(self._marks)
        self.cache.close()

    def _drop(self, marks: Sequence[Mark]) -> None:
        self._marks = [m for m in self._marks if m not in marks]
        for mark in marks:
            mark.snapshot.free()


def preference(mark: Mark) -> tuple[int, bool]:
    """Greater for the better of two marks that fit a prompt."""
    return mark.length, mark.lacks is None


def common_length(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if list(a[low:middle]) == list(b[low:middle]):
            low = middle
        else:
            high = middle - 1
    return low
