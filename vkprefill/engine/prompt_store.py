"""The conversations of a model that are remembered: which one a prompt goes on from, and what makes room.

Their number is bounded by memory alone. Keys and values stay on the device, in the pages of the pool; the marks of all
conversations but the one in use lie in the host's memory, up to a budget.

What is worth least goes first. Worth is what it would cost to have it again, in tokens of the prompt: those that no
other state holds. Tokens that were left out count too, since a draft would have to read them again to tell which they
are. Worth counts the less the longer ago it was used, so a side request, such as for a title, goes before an older
conversation that is longer. A copy of a beginning is no use of what it was copied from.

Several conversations may have answers in the making, in turns. None of them is forgotten, or gone on with by another
prompt; a beginning of it may be copied. Where their keys and values are more than the device has room for, those whose
turn it is not lie in the host's memory meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from vkprefill.engine.cache import Cache
from vkprefill.engine.cache_pool import CachePool
from vkprefill.engine.prompt_cache import Mark, PromptCache, common_length, preference
from vkprefill.engine.sizes import num_pages

MIN_COPIED = 32  # tokens of a shared beginning that are worth a copy
FRESH = 2  # with n conversations, what was used up to about 2 n requests ago is not old: others had a turn meanwhile


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
        self.first_to_go: Callable[[], None] = lambda: None  # gives back what is worth less than any conversation
        pool.on_full = self._make_room

    def choose(self, find: Callable[[PromptCache], Mark | None], num_tokens: int) -> PromptCache:
        """The conversation to run a prompt of so many tokens on; find: the mark of one that it can go on from.

        The one with the longest beginning is gone on with where the prompt has all of its history. Else it is copied
        where less has to be forgotten for the copy than of it.
        """
        here = [c for c in self._all if c.cache.away is None]
        marks = [mark for conversation in here if (mark := find(conversation)) is not None]
        best = max(marks, key=preference, default=None)
        source = next((c for c in self._all if best in c.marks), None)
        if source is None or best.length < MIN_COPIED:
            return self.choose_empty(num_tokens)
        free = source not in self._pool.tenants
        if free and (best.length >= source.settled or not self._is_worth_a_copy(source, best, num_tokens)):
            return self._use(source, num_tokens)
        self._hold(source)
        copy = self._empty()
        self._hold(source, copy)
        if free:
            source.park()
        copy.start_from(source, best)
        return self._use(copy, num_tokens)

    def choose_empty(self, num_tokens: int) -> PromptCache:
        """One to run a prompt of so many tokens on that takes nothing from others."""
        self._hold()
        return self._use(self._empty(), num_tokens)

    def begin(self, conversation: PromptCache) -> None:
        """It takes turns with others from now on, see `resume`."""
        self._pool.tenants.append(conversation)

    def resume(self, conversation: PromptCache | None) -> None:
        """It is the turn of this one; None: of one that is yet to be chosen."""
        self._pool.tenant = conversation

    def end(self, conversation: PromptCache) -> None:
        """It takes no more turns."""
        for those in (self._pool.tenants, self._held):
            if conversation in those:
                those.remove(conversation)
        self._pool.tenant = None
        if conversation.cache.away is not None:
            conversation.reset()

    def can_resume(self, conversation: PromptCache) -> bool:
        """Whether its turn would take away no more of others than they have kept from it: its keys and values are on
        the device, or it has fewer than another one there, or there is room, or no other is there.
        """
        away = self._pool.pages_of(conversation)[1]
        here = [self._pool.pages_of(other)[0] for other in self._pool.tenants if other is not conversation]
        idle = sum(len(c.cache.pages) for c in self._idle())
        return away < max(here, default=0) or away <= len(self._pool.free_pages) + idle or not any(here)

    def forget_others(self) -> bool:
        """Give back the memory of all that are not in use; whether there was any."""
        idle = self._idle()
        for conversation in idle:
            conversation.reset()
        return bool(idle)

    def figures(self) -> StoreFigures:
        kept = self._kept()
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

    def _use(self, conversation: PromptCache, num_tokens: int) -> PromptCache:
        self._clock += 1
        conversation.last_used, conversation.num_wanted = self._clock, num_tokens
        self._hold(conversation)
        self._trim()
        return conversation

    def _trim(self) -> None:
        while self._used() > self._host_bytes:
            self._drop_a_mark()

    def _is_worth_a_copy(self, source: PromptCache, mark: Mark, num_tokens: int) -> bool:
        """Whether forgetting others for a copy costs less than forgetting what comes after the mark."""
        others, pages = [c for c in self._kept() if c is not source], num_pages(num_tokens)
        beside = self._victims(others, pages)
        if len(self._pool.free_pages) + sum(len(c.cache.pages) for c in beside) < pages:
            return False
        instead = self._victims(others, pages - len(source.cache.pages))
        lost = source.num_after(mark.length) * self._weight(source)
        return sum(beside.values()) < lost + sum(instead.values())

    def _hold(self, *conversations: PromptCache) -> None:
        """These are not to be forgotten; those before may have to make room from now on."""
        for conversation in self._all:
            if conversation not in (*conversations, *self._pool.tenants):
                conversation.park()
        self._held = list(conversations)

    def _empty(self) -> PromptCache:
        """One without content: new, or forgotten."""
        idle = self._idle()
        if self._most is not None and len(idle) >= self._most:
            self._evict(min(idle, key=self._values().__getitem__))
        found = next((c for c in self._all if c not in self._in_use and not len(c.cache)), None)
        if found is None:
            found = PromptCache(self._new_cache())
            found.marked = self._trim
            self._all.append(found)
        found.reset()
        return found

    def _kept(self) -> list[PromptCache]:
        return [c for c in self._all if len(c.cache)]

    def _idle(self) -> list[PromptCache]:
        return [c for c in self._kept() if c not in self._in_use]

    @property
    def _in_use(self) -> list[PromptCache]:
        return [*self._held, *self._pool.tenants]

    def _weight(self, conversation: PromptCache) -> float:
        """How likely it is to come again: less the longer ago it was used."""
        return 1 / (FRESH * len(self._kept()) + self._clock + 1 - conversation.last_used)

    def _values(self, gone: Sequence[PromptCache] = ()) -> dict[PromptCache, float]:
        """Of each conversation, if those were gone: its tokens that no other holds, by how likely it comes again."""
        found = held_by_others([c for c in self._kept() if c not in gone])
        return {c: c.num_after(max(lengths, default=0)) * self._weight(c) for c, lengths in found.items()}

    def _victims(self, among: Sequence[PromptCache], pages: int) -> dict[PromptCache, float]:
        """Conversations to forget until so many pages are free, and their values: the least valuable first, but none
        that the others make room without. What two hold is worth more as soon as one of them goes.
        """
        victims = dict[PromptCache, float]()
        missing = pages - len(self._pool.free_pages)
        while missing > 0 and (left := [c for c in among if c not in victims]):
            values = self._values(list(victims))
            victim = min(left, key=values.__getitem__)
            victims[victim] = values[victim]
            missing -= len(victim.cache.pages)
        for victim in reversed(list(victims)):
            if missing + len(victim.cache.pages) <= 0:
                missing += len(victim.cache.pages)
                del victims[victim]
        return victims

    def _make_room(self, pages: int) -> None:
        """Forget idle conversations until so many pages are free, if that is possible. Pages are asked for as a prompt
        is run; which conversations go is chosen with the whole prompt in view.
        """
        self.first_to_go()
        running = {*self._held[-1:], *self._pool.tenants}
        wanted = sum(max(0, num_pages(c.num_wanted) - len(c.cache.pages)) for c in running)
        for conversation in self._victims(self._idle(), max(pages, wanted)):
            if len(self._pool.free_pages) < pages:
                self._evict(conversation)
        self._pool.send_away(pages)

    def _evict(self, conversation: PromptCache) -> None:
        conversation.reset()
        self._evictions += 1

    def _used(self) -> int:
        return sum(mark.snapshot.host_bytes for c in self._all for mark in c.marks)

    def _drop_a_mark(self) -> None:
        """The one on the host whose loss costs least; a conversation without marks is of no use."""
        others, least = held_by_others(self._all), list[tuple[float, Mark, PromptCache]]()
        for conversation in self._all:
            weight = self._weight(conversation)
            for mark in conversation.marks:
                if mark.snapshot.host_bytes:
                    elsewhere = max((n for n in others[conversation] if n <= mark.length), default=0)
                    again = min(conversation.gap(mark), mark.length - elsewhere)
                    least.append((again * weight, mark, conversation))
        _, mark, conversation = min(least, key=lambda one: one[0])
        conversation.drop(mark)
        if not conversation.marks and conversation not in self._in_use:
            self._evict(conversation)


def held_by_others(conversations: Sequence[PromptCache]) -> dict[PromptCache, list[int]]:
    """Of each, the lengths of those of its beginnings that another one can go on from. Nothing has more in common with
    a prompt than its neighbours in order.
    """
    found: dict[PromptCache, list[int]] = {c: [] for c in conversations}
    in_order = sorted(conversations, key=lambda c: c.prompt)
    for one, other in pairwise(in_order):
        common = common_length(one.prompt, other.prompt)
        found[one] += other.lengths(common)
        found[other] += one.lengths(common)
    return found
