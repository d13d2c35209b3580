"""What a model remembers of a sequence: keys and values in pages of a pool, convolution and recurrent state.

All caches of a model share one pool of KV pages and one *live* state, which the kernels work on. The cache that ran
last owns the live state; another cache's state lies in a buffer of its own and is swapped in when that cache runs. A
snapshot is such a buffer with a length: keys and values are only appended, so going back is a matter of the length, but
recurrent state cannot be cut back.

A prompt that is read in two parts (engine/split.py) has two lengths: layers up to one have all its tokens, later ones
those that were kept. Both are in the same pages, each layer's slots from the first on without gaps.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from vkprefill.engine.cache_pool import CachePool
from vkprefill.engine.sizes import PAGE, num_pages
from vkprefill.errors import ContextLengthError, OutOfMemoryError, RequestError
from vkprefill.vulkan.buffer import Buffer


@dataclass(eq=False)
class Ahead:
    """What layers up to the split have read of a prompt and the others have not: the tokens from slot `first` on.
    states: number of slots -> the early layers' part of the state there, where a snapshot may be wanted.
    """

    first: int
    states: dict[int, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Point:
    """Where a cache is, but for the state; see Cache. late_length: number of late_positions."""

    length: int = 0
    next_position: int = 0
    mtp_from: int = 0
    split: int | None = None
    late_length: int = 0
    ahead: Ahead | None = None
    states_set: object | None = None


@dataclass(eq=False)
class Snapshot:
    """A point a cache can go back to; free() or dropping it gives its memory back."""

    point: Point
    state: Buffer | np.ndarray | None = field(repr=False)  # on the device or the host; None: the empty cache, or freed
    stale: bool = False  # freed, or the cache went back further

    @property
    def length(self) -> int:
        """Slots in use."""
        return self.point.length

    @property
    def host_bytes(self) -> int:
        return self.state.nbytes if isinstance(self.state, np.ndarray) else 0

    @property
    def device_bytes(self) -> int:
        return self.state.num_bytes if isinstance(self.state, Buffer) else 0

    def to_host(self) -> None:
        """Keep the state in the host's memory from now on: the same bits, slower to go back to."""
        if isinstance(self.state, Buffer):
            on_device, self.state = self.state, self.state.read()
            on_device.free()

    def free(self) -> None:
        if self.state is not None:
            state, self.state, self.stale = self.state, None, True
            if isinstance(state, Buffer):
                state.free()


class Cache:
    """One sequence: made by Model.new_cache, grown by prefill and decode, closed with close() or when it is dropped.

    token_ids, positions: of every cached token, in call order; next_position: where the next token goes unless told
    otherwise; mtp_from: slot from which on the multi-token-prediction block has keys and values, the start of a page
    (which the cache may yet have to reach); states_set: an object of its own for each time that a caller set states,
    that of the last one; split: the layer after which layers, and the block, have keys and values of the tokens at
    late_positions only (None: all have all); ahead: a prompt that is read up to there, until it has run through the
    others too.
    """

    closed = True  # until it is made

    def __init__(self, pool: CachePool, max_context: int) -> None:
        self.pool = pool
        self.max_context = max_context
        self.pages: list[int] = []  # of the pool; what no cache lists is free
        pool.caches.add(self)
        self.token_ids: list[int] = []
        self.positions: list[int] = []
        self.next_position = self.mtp_from = 0
        self.states_set: object | None = None
        self.split: int | None = None
        self.late_positions: list[int] = []  # where split is None, those of all
        self.ahead: Ahead | None = None
        self.broken = False  # a run on it was cut off: state and length disagree
        self._begun = Point()
        self._home: Buffer | np.ndarray | None = None  # its state, while another cache's is the live one
        self.tenant: object | None = None  # who ran it last, of several that take turns
        self.away: np.ndarray | None = None  # content of its pages, while others have them
        self._snapshots: weakref.WeakSet[Snapshot] = weakref.WeakSet()
        self.closed = False

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def run_positions(self) -> list[int]:
        """Of the tokens that all layers have run."""
        return self.positions if self.split is None else self.late_positions

    def length_of(self, layer: int) -> int:
        """Slots that a layer has in use; of the multi-token-prediction block too, which comes after the others."""
        return len(self) if self.split is None or layer <= self.split else len(self.late_positions)

    @property
    def late_length(self) -> int:
        """Slots that the last layer has in use."""
        return len(self.run_positions)

    def length_after(self, count: int) -> int:
        """Slots in use when `count` further tokens have run through all layers; those read ahead have theirs."""
        return len(self) + (0 if self.ahead else count)

    def reserve(self, num_tokens: int) -> None:
        """Make room for more tokens and make this cache the live one.

        Raises ContextLengthError beyond max_context, OutOfMemoryError when the pool is used up.
        """
        self._check_usable()
        self.pool.drop_undecided()
        needed = len(self) + num_tokens
        if needed > self.max_context:
            raise ContextLengthError(
                f"context: {len(self)} cached and {num_tokens} new tokens, the cache holds {self.max_context}"
            )
        missing = num_pages(needed) - len(self.pages)
        if missing > 0 and self.pool.on_full is not None and missing > len(self.pool.free_pages):
            self.pool.on_full(missing)
        free = self.pool.free_pages if missing > 0 else []
        if missing > len(free):
            raise OutOfMemoryError(
                f"KV cache: {missing * PAGE} more slots wanted, {len(free) * PAGE} of {self.pool.num_slots} are free; "
                "close other caches or load with a larger max_context"
            )
        self.pages += free[: max(0, missing)]
        self.tenant = self.pool.tenant
        if self.away is not None:
            self.pool.write_pages(self.pages, self.away)
            self.away = None
        self.pool.activate(self)

    def append(self, token_ids: list[int], positions: list[int]) -> None:
        """Note tokens whose keys and values a run has stored."""
        self.append_early(token_ids, positions)
        if self.split is not None:
            self.late_positions += positions

    def append_early(self, token_ids: list[int], positions: list[int]) -> None:
        """Note tokens that layers up to the split have read."""
        self.token_ids += token_ids
        self.positions += positions
        self.next_position = positions[-1] + 1

    def append_late(self, positions: list[int]) -> None:
        """Note tokens read ahead that the other layers have run; the last one ends the prompt."""
        self.late_positions += positions
        if positions[-1] == self.positions[-1]:
            self.ahead = None
            if len(self.late_positions) == len(self):
                self.split = None

    def divide(self, after: int) -> None:
        """From now on the layers after this one may have fewer tokens. RequestError where others have already."""
        if self.split is None:
            self.split, self.late_positions = after, list(self.positions)
        elif self.split != after:
            raise RequestError(f"cache: layers after {self.split} have some of its tokens only, wanted after {after}")

    def accept(self, count: int) -> None:
        """Note the next `count` tokens of the last run of rows. The others stay undecided until anything is run: then
        they never were.

        Raises RequestError where this cache has no such rows, or was used since.
        """
        rows = self.pool.kept
        found = len(rows.ids) if self.pool.live() is self else 0
        if not 0 <= count <= found:
            raise RequestError(f"accept: {count} rows, of this cache {found} have run and are undecided")
        self.broken = True  # until all is done
        if count:
            self.append(*rows.accept(count))
        self.broken = False

    def snapshot(self, *, on_host: bool = False, before: int | None = None) -> Snapshot:
        """Remember this point. Costs a copy of the state (half of Model.memory.state); raises OutOfMemoryError without
        room for it on the device.

        before: in a prompt that is read ahead, the point before this position: all layers have run what they are to
        have of the tokens up to there. RequestError where no state was kept for it.
        """
        with self.pool.turn:
            self._check_usable()
            point, early = self._point(), None
            if self.ahead is not None:
                point = self._point_before(before)
                early = self.ahead.states.get(point.length)
                if early is None:
                    raise RequestError(f"snapshot: a prompt is read ahead, and nothing was kept for position {before}")
            state = None
            if point.length:
                self.pool.activate(self)
                state = self.pool.download_state() if on_host else self.pool.save_state("snapshot")
            if early is not None and state is not None:
                self.pool.replace_beginning(state, early)
            snapshot = Snapshot(point, state)
            self._snapshots.add(snapshot)
            return snapshot

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot of this cache; later ones are void then.

        Raises RequestError when it is another cache's or void.
        """
        if self.closed or snapshot not in self._snapshots or snapshot.stale:
            raise RequestError("snapshot: not one of this cache, freed, or void since the cache went back further")
        with self.pool.turn:
            self._go_back(snapshot.point, snapshot.state)

    def copy_rows(self, rows: Sequence[int]) -> Cache:
        """A new cache with all of this one's state and next position, but only some keys and values. Slow.

        rows: rising indices into token_ids, at least one. What is cut away is gone for attention only: recurrent state
        has seen it. RequestError for a cache with a split.
        """
        self._check_usable()
        if self.split is not None:
            raise RequestError(
                f"cache: layers after {self.split} have some of its tokens only; rows cannot be taken out"
            )
        chosen = np.asarray(rows)
        whole = chosen.ndim == 1 and chosen.size and chosen.dtype.kind in "iu"
        if not whole or chosen[0] < 0 or chosen[-1] >= len(self) or (np.diff(chosen) <= 0).any():
            raise RequestError(f"rows: wanted rising indices from 0 to {len(self) - 1}, at least one")
        copy = Cache(self.pool, self.max_context)
        try:
            self.pool.activate(self)
            copy._home = self.pool.save_state("state of a cache")
            copy.reserve(len(chosen))
            self.pool.copy_rows(self.pages, copy.pages, chosen)
        except BaseException:
            copy.close()
            raise
        copy.append([self.token_ids[r] for r in chosen], [self.positions[r] for r in chosen])
        copy.next_position = self.next_position
        copy.mtp_from = num_pages(np.count_nonzero(chosen < self.mtp_from)) * PAGE
        return copy

    def start_from(self, other: Cache, snapshot: Snapshot) -> None:
        """Forget everything and begin where another cache was at a snapshot, which both keep. Copies on the device.

        Raises what `reserve` raises, RequestError when the snapshot is void.
        """
        self.reset()
        if snapshot not in other._snapshots or snapshot.stale or not snapshot.length:
            raise RequestError("snapshot: not one of the other cache, freed, void, or empty")
        self.reserve(snapshot.length)
        if snapshot.stale or other.away is not None:  # the other cache had to make room
            self.reset()
            raise OutOfMemoryError(
                f"KV cache: no room for another {snapshot.length} tokens beside those they are copied from"
            )
        self.broken = True  # until all is done
        self.pool.copy_pages(other.pages[: len(self.pages)], self.pages)
        self.pool.load_state(snapshot.state)
        self.append(other.token_ids[: snapshot.length], other.positions[: snapshot.length])
        self.late_positions = other.run_positions[: snapshot.point.late_length]
        self._set_point(snapshot.point)
        self.broken = False

    def recurrent_state(self, layer: int) -> np.ndarray:
        """float32 [Hv, Dk, Dv], a copy of a delta-net layer's state after the last token."""
        with self.pool.turn:
            self._check_usable()
            self.pool.activate(self)
            return self.pool.recurrent_state(layer)

    def set_recurrent_state(self, layer: int, state: np.ndarray) -> None:
        """What the next token goes on from, [Hv, Dk, Dv]; snapshots stay as they are. RequestError for an empty
        cache.
        """
        with self.pool.turn:
            self._check_usable()
            if not len(self):
                raise RequestError("state: the cache is empty; a state is set between tokens")
            self.pool.activate(self)
            self.pool.set_recurrent_state(layer, state)
            self.states_set = object()

    def leave_pages(self) -> None:
        """Keys and values go to the host's memory until it runs again."""
        if self.away is None:
            self.away = self.pool.read_pages(self.pages)
        self.pages.clear()

    def let_go(self) -> None:
        """Give up the recurrent state, and its memory: the cache goes on from a snapshot only."""
        if len(self):
            self.broken = True
            self._drop_home()
            self.pool.let_go(self)

    def begin(self) -> None:
        """Remember this point, which `undo` can go back to until another cache begins. Takes no memory."""
        self._check_usable()
        self.pool.activate(self)
        if len(self):
            self.pool.keep_for_undo()
        self._begun = self._point()

    def undo(self) -> None:
        """Go back to where the last `begin` was."""
        self._go_back(self._begun, self.pool.undo_state if self._begun.length else None)

    def _go_back(self, point: Point, state: Buffer | np.ndarray | None) -> None:
        self.broken = True  # until all is done
        self.pool.set_state(self, state)
        self._drop_home()
        self._void_snapshots(point.length)
        del self.token_ids[point.length :], self.positions[point.length :]
        del self.late_positions[point.late_length :]
        self._set_point(point)
        del self.pages[num_pages(point.length) :]
        self.broken = False

    def _point(self) -> Point:
        late = len(self.late_positions) if self.split is not None else 0
        return Point(len(self), self.next_position, self.mtp_from, self.split, late, self.ahead, self.states_set)

    def _point_before(self, position: int | None) -> Point:
        """In a prompt that is read ahead."""
        length = len(self) if position is None else bisect_left(self.positions, position)
        late = len(self.late_positions)
        if late == length:  # none was left out
            return Point(length, position, self.mtp_from, states_set=self.states_set)
        return Point(length, position, self.mtp_from, self.split, late, states_set=self.states_set)

    def _set_point(self, point: Point) -> None:
        """All but the length."""
        self.next_position, self.mtp_from = point.next_position, point.mtp_from
        self.split, self.ahead, self.states_set = point.split, point.ahead, point.states_set

    def reset(self) -> None:
        """Forget everything; the pages go back to the pool, snapshots are void."""
        self._drop_home()
        self._void_snapshots(0)
        self.pool.release(self)
        self.token_ids, self.positions, self.late_positions, self.away = [], [], [], None
        self._set_point(Point())
        self.broken = False

    def close(self) -> None:
        """Give all memory back. The cache cannot be used afterwards; closing twice does nothing."""
        if not self.closed:
            self.reset()
            self.closed = True

    def __del__(self) -> None:
        self.close()

    def _void_snapshots(self, length: int) -> None:
        """Those of more tokens than this: their keys and values may be overwritten from now on."""
        for snapshot in list(self._snapshots):
            if snapshot.length > length:
                snapshot.free()

    def _drop_home(self) -> None:
        home, self._home = self._home, None
        if isinstance(home, Buffer):
            home.free()

    def _check_usable(self) -> None:
        if self.closed:
            raise RequestError("cache: closed; make a new one")
        if self.broken:
            raise RequestError("cache: a run on it was interrupted; reset it or restore a snapshot")
