"""The conversations of a model that are remembered: which one a prompt goes on from, and what makes room.

Their number is bounded by memory alone. Keys and values stay on the device, in the pages of the pool; the marks of all
conversations but the one in use lie in the host's memory, up to a budget. What is worth least goes first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from vkprefill.engine.cache import Cache
from vkprefill.engine.cache_pool import CachePool
from vkprefill.engine.prompt_cache import Mark, PromptCache, preference
from vkprefill.engine.sizes import num_pages

MIN_COPIED = 32  # tokens of a shared beginning that are worth a copy
USED_ONCE = 0.4  # how likely such a prompt comes again, against one that has: most side requests never do


@dataclass(frozen=True)
class StoreFigures:
    """What is remembered: conversations, their tokens, marks and bytes; evictions: conversations forgotten for room."""

    conversations: int
    marks: int
    tokens: int
    device_bytes: int
    host_bytes: int
    evictions: int

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


class PromptStore:
    """pool: of the caches that new_cache makes; host_bytes: for marks; most: of conversations (None: any number)."""

    def __init__(
        self, new_cache: Callable[[], Cache], pool: CachePool, host_bytes: int, most: int | None = None
    ) -> None:
        self._new_cache, self._pool, self._host_bytes, self._most = new_cache, pool, host_bytes, most
        self._all: list[PromptCache] = []
        self._held: list[PromptCache] = []  # not to be forgotten: the one in use, and one that is copied from
        self._clock = self._evictions = 0
        pool.on_full = self._make_room

    def choose(self, find: Callable[[PromptCache], Mark | None]) -> PromptCache:
        """The conversation to run a prompt on; find: the mark of one that the prompt can go on from.

        The one with the longest beginning is gone on with where the prompt has all of its history, else copied where
        there is room or it would forget more than it saves.
        """
        marks = [mark for conversation in self._all if (mark := find(conversation)) is not None]
        best = max(marks, key=preference, default=None)
        source = next((c for c in self._all if best in c.marks), None)
        if source is None or best.length < MIN_COPIED:
            return self.choose_empty()
        lost = len(source.prompt) - best.length
        room = num_pages(best.snapshot.length) < len(self._pool.free_pages)
        if best.length < source.settled and (room or lost > best.length):
            self._note_use(source)
            self._hold(source)
            copy = self._empty()
            self._hold(source, copy)
            source.park()
            copy.start_from(source, best)
            source = copy
        return self._use(source)

    def choose_empty(self) -> PromptCache:
        """One to run a prompt on that takes nothing from others."""
        self._hold()
        return self._use(self._empty())

    def forget_others(self) -> bool:
        """Give back the memory of all that are not in use; whether there was any."""
        idle = self._idle()
        for conversation in idle:
            conversation.reset()
        return bool(idle)

    def figures(self) -> StoreFigures:
        kept = [c for c in self._all if len(c.cache)]
        marks = [mark for c in kept for mark in c.marks]
        pages = sum(len(c.cache.pages) for c in kept)
        return StoreFigures(
            conversations=len(kept),
            marks=len(marks),
            tokens=sum(len(c.cache) for c in kept),
            device_bytes=pages * self._pool.page_bytes + sum(mark.snapshot.device_bytes for mark in marks),
            host_bytes=self._used(),
            evictions=self._evictions,
        )

    def close(self) -> None:
        self._pool.on_full = None
        for conversation in self._all:
            conversation.close()
        self._all, self._held = [], []

    def _use(self, conversation: PromptCache) -> PromptCache:
        self._note_use(conversation)
        self._hold(conversation)
        self._trim()
        return conversation

    def _trim(self) -> None:
        while self._used() > self._host_bytes:
            self._drop_a_mark()

    def _note_use(self, conversation: PromptCache) -> None:
        self._clock += 1
        conversation.last_used = self._clock
        conversation.uses += 1

    def _hold(self, *conversations: PromptCache) -> None:
        """These are not to be forgotten; those before may have to make room from now on."""
        for conversation in self._held:
            if conversation not in conversations:
                conversation.park()
        self._held = list(conversations)

    def _empty(self) -> PromptCache:
        """One without content: new, or forgotten."""
        idle = self._idle()
        if self._most is not None and len(idle) >= self._most:
            self._evict(min(idle, key=self._value))
        found = next((c for c in self._all if c not in self._held and not len(c.cache)), None)
        if found is None:
            found = PromptCache(self._new_cache())
            found.marked = self._trim
            self._all.append(found)
        found.reset()
        found.uses = 0
        return found

    def _idle(self) -> list[PromptCache]:
        return [c for c in self._all if c not in self._held and len(c.cache)]

    def _weight(self, conversation: PromptCache) -> float:
        """How likely it is to come again: less the longer ago it was used."""
        return (1 if conversation.uses > 1 else USED_ONCE) / (self._clock + 1 - conversation.last_used) ** 2

    def _value(self, conversation: PromptCache) -> float:
        """Tokens that would have to be run again, by how likely that is."""
        return len(conversation.cache) * self._weight(conversation)

    def _make_room(self, pages: int) -> None:
        """Forget idle conversations, the least valuable first, until so many pages are free."""
        for conversation in sorted(self._idle(), key=self._value):
            if len(self._pool.free_pages) >= pages:
                return
            self._evict(conversation)

    def _evict(self, conversation: PromptCache) -> None:
        conversation.reset()
        self._evictions += 1

    def _used(self) -> int:
        return sum(mark.snapshot.host_bytes for c in self._all for mark in c.marks)

    def _drop_a_mark(self) -> None:
        """The one on the host whose loss costs least; a conversation without marks is of no use."""
        marks = [(c.gap(mark) * self._weight(c), i, mark, c) for i, c in enumerate(self._all) for mark in c.marks]
        _, _, mark, conversation = min((m for m in marks if m[2].snapshot.host_bytes), key=lambda m: m[:2])
        conversation.drop(mark)
        if not conversation.marks and conversation not in self._held:
            self._evict(conversation)
