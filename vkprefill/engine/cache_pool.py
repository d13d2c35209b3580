"""The device memory behind all caches of a model: pages of keys and values, the live recurrent state."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vkprefill.engine.kept_rows import KeptRows, kept_layer_size
from vkprefill.engine.kv_layout import page_of_rows, rows_of_page
from vkprefill.engine.one_thread import OneThread
from vkprefill.engine.sizes import PAGE, Sizes, conv_state_size, num_pages, recurrent_state_size
from vkprefill.errors import OutOfMemoryError, RequestError
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.device import Device

if TYPE_CHECKING:
    from vkprefill.engine.cache import Cache


@dataclass(frozen=True)
class KVLayer:
    """Keys and values of one full-attention layer, all pages."""

    keys: Buffer
    values: Buffer


@dataclass(frozen=True)
class StateOffsets:
    """Where a delta-net layer's states start in the state buffer, and its rows in that of KeptRows, in floats."""

    conv: int
    recurrent: int
    kept: int

    def to(self, other: StateOffsets) -> StateOffsets:
        """How far it is from here to there."""
        return StateOffsets(other.conv - self.conv, other.recurrent - self.recurrent, other.kept - self.kept)


class CachePool:
    """The device memory behind all caches of a model."""

    def __init__(self, device: Device, sizes: Sizes, turn: OneThread) -> None:
        self.device, self.config, self.kv_type, self.turn = device, sizes.config, sizes.kv_type, turn
        self._page_words, pages, config = sizes.page_words, sizes.pages, sizes.config
        self.num_slots = pages * PAGE
        self.caches: weakref.WeakSet[Cache] = weakref.WeakSet()
        self.on_full: Callable[[int], None] | None = (
            None  # called when fewer pages are free than needed: it may close or reset other caches
        )
        self.tenants: list[object] = []  # who take turns with caches of their own; without any, nobody does
        self.tenant: object | None = None  # of them, whose turn it is
        self.page_table = device.buffer("page_table", (pages,), np.uint32, memory="host", kind="exchange")
        # of the slots that the multi-token-prediction block attends to
        self.draft_pages = (
            device.buffer("draft_pages", (pages,), np.uint32, memory="host", kind="exchange") if sizes.block else None
        )
        shape = (pages, self._page_words)
        self.kv = {
            layer: KVLayer(
                *(device.buffer(f"L{layer:02d}.{name}", shape, np.uint32, kind=kind) for name in ("keys", "values"))
            )
            for layer in sizes.kv_layers
            for kind in ("kv_cache" if layer in config.attention_layers else "mtp",)
        }
        self.state, self.undo_state = (
            device.buffer(name, (sizes.state_size,), kind="state") for name in ("state", "undo state")
        )
        self.kept = KeptRows(device, sizes)
        # apply_kept(count) is called to take the first `count` of the rows that ran last into the undo state
        self.apply_kept: Callable[[int], None] | None = None
        conv, recurrent = conv_state_size(config), recurrent_state_size(config)
        kept = kept_layer_size(config.conv_dim, config.linear_num_value_heads)
        self.offsets = {
            layer: StateOffsets(i * (conv + recurrent), i * (conv + recurrent) + conv, i * kept)
            for i, layer in enumerate(config.linear_layers)
        }
        self.mtp_layer = sizes.block.layer if sizes.block else None
        self.waiting_row: Buffer | None = None
        """[D], in the live state: the trunk's last row after its last norm, with which the next token of the
        multi-token-prediction block is paired; zeros before the first. None without a block."""
        if sizes.block:
            start = len(config.linear_layers) * (conv + recurrent)
            self.waiting_row = self.state.part("waiting row", start, (config.hidden_size,))
        self._owner: weakref.ref[Cache] | None = None

    @property
    def free_pages(self) -> list[int]:
        """Those that no cache lists, rising. There is no other record of them: a cache that is collected in the middle
        of anything frees its pages by being gone.
        """
        used = {page for cache in self.caches for page in cache.pages}
        return [page for page in range(self.num_slots // PAGE) if page not in used]

    @property
    def page_bytes(self) -> int:
        """Of the keys and values of all layers."""
        return 2 * len(self.kv) * self._page_words * 4

    def buffers(self) -> list[Buffer]:
        """Everything the pool has allocated."""
        return [
            self.page_table,
            *([self.draft_pages] if self.draft_pages else []),
            self.state,
            self.undo_state,
            self.kept.buffer,
            *self._kv_buffers,
        ]

    def drop_undecided(self) -> None:
        """Rows that ran last and were not accepted never will be; the pages that only they are in go back."""
        owner = self.live()
        if owner is not None and self.kept.ids:
            del owner.pages[num_pages(len(owner)) :]
        self.kept.drop()

    def activate(self, cache: Cache) -> None:
        """Make this cache's state the live one and its pages the ones in the table."""
        if self.live() is not cache:
            self.set_state(cache, cache._home)
            cache._drop_home()
        if self.kept.aside:
            self.settle()
        self.kept.drop()
        self.page_table.view()[: len(cache.pages)] = cache.pages

    def set_state(self, cache: Cache, saved: Buffer | np.ndarray | None) -> None:
        """Make the live state this cache's, with saved content (None: zeros); the owner before keeps a copy."""
        owner = self.live()
        if owner is not None and owner is not cache and len(owner):
            owner._home = self._put_aside()
        self._owner = None  # an interrupt in what follows leaves a state that is nobody's
        self.kept.clear()
        if saved is None:
            self.clear_state()
        else:
            self.load_state(saved)
        self._owner = weakref.ref(cache)

    def live(self) -> Cache | None:
        """The cache whose state is the live one."""
        return self._owner() if self._owner else None

    def release(self, cache: Cache) -> None:
        """Take back a cache's pages and its claim on the live state."""
        cache.pages.clear()
        self.let_go(cache)

    def let_go(self, cache: Cache) -> None:
        """Take back a cache's claim on the live state."""
        if self.live() is cache:
            self._owner = None

    def settle(self) -> None:
        """Bring the live state up to the last token of its cache: rows that wait become part of it. An interrupt in it
        leaves what the next call goes on from.
        """
        kept = self.kept
        kept.drop()
        if kept.waiting and not kept.aside:
            self._apply_aside(kept.waiting)
            kept.aside = True
        if kept.aside:
            self._copy(self.undo_state, self.state)
            kept.clear()

    def _apply_aside(self, count: int) -> None:
        """The undo state is the live one with the first `count` of the rows that ran last."""
        self._copy(self.state, self.undo_state)
        self.apply_kept(count)

    def save_state(self, label: str) -> Buffer:
        """A copy of the live state in a new buffer."""
        self.settle()
        saved = self.device.buffer(label, self.state.shape, kind="snapshots")
        self._copy(self.state, saved)
        return saved

    def _put_aside(self) -> Buffer | np.ndarray:
        """A copy of the live state, in the host's memory where the device has no room: no cache fails for another."""
        try:
            return self.save_state("state of a cache")
        except OutOfMemoryError:
            return self.download_state()

    def download_state(self) -> np.ndarray:
        """A copy of the live state in the host's memory."""
        self.settle()
        return self.state.read()

    def state_up_to(self, layer: int) -> np.ndarray:
        """A copy of the beginning of the live state, that of the layers up to this one, in the host's memory."""
        self.settle()
        each = conv_state_size(self.config) + recurrent_state_size(self.config)
        count = each * sum(other <= layer for other in self.offsets)
        return self.device.download(self.state.part("early state", 0, (count,))) if count else np.zeros(0, np.float32)

    def replace_beginning(self, saved: Buffer | np.ndarray, beginning: np.ndarray) -> None:
        """Write the beginning of a saved state anew."""
        if isinstance(saved, np.ndarray):
            saved[: len(beginning)] = beginning
        elif len(beginning):
            self.device.upload(saved.part("early state", 0, beginning.shape), [beginning])

    def keep_for_undo(self) -> None:
        self.settle()
        self._copy(self.state, self.undo_state)

    def load_state(self, saved: Buffer | np.ndarray) -> None:
        if isinstance(saved, np.ndarray):
            self.device.upload(self.state, [saved])
        else:
            self._copy(saved, self.state)

    def copy_rows(self, source: list[int], target: list[int], rows: np.ndarray) -> None:
        """Keys and values of some slots of the source pages -> the first slots of the target pages, in order. Through
        the host: slow.
        """
        for layer in self.kv.values():
            for buffer, keys in (layer.keys, True), (layer.values, False):
                old = np.concatenate([self._read_page(buffer, page, keys) for page in source])
                new = np.zeros((len(target) * PAGE, *old.shape[1:]), old.dtype)
                new[: len(rows)] = old[rows]
                for page, content in zip(target, new.reshape(-1, PAGE, *old.shape[1:]), strict=True):
                    self.device.upload(self._page(buffer, page), [page_of_rows(content, keys=keys)])

    def is_finite(self, layer: int, cache: Cache) -> bool:
        """Whether a full-attention layer's keys and values of all of the live cache's tokens are finite, those of rows
        that are not accepted too. Slow.
        """
        exponent = 0x7C00 if self.kv_type == "f16" else 0x7F800000
        length = cache.length_of(layer) + len(self.kept.ids)
        for buffer, keys in (self.kv[layer].keys, True), (self.kv[layer].values, False):
            for i, page in enumerate(cache.pages):
                rows = self._read_page(buffer, page, keys)[: max(0, length - i * PAGE)]
                if ((rows & exponent) == exponent).any():
                    return False
        return True

    def read_state(self, layer: int) -> np.ndarray:
        """float32: convolution and recurrent state of a delta-net layer after all tokens that the cache that ran last
        has run, those too that are not accepted.
        """
        size = conv_state_size(self.config) + recurrent_state_size(self.config)
        state, rows = self.state, self.kept.waiting + len(self.kept.ids)
        if rows:
            self._apply_aside(rows)
            state = self.undo_state
        return self.device.download(state.part("state", self.offsets[layer].conv, (size,)))

    def recurrent_state(self, layer: int) -> np.ndarray:
        """float32 [Hv, Dk, Dv] of a delta-net layer of the live cache."""
        self._check_delta(layer)
        shape = self._state_shape
        values = self.read_state(layer)[conv_state_size(self.config) :].reshape(shape[0], shape[2], shape[1])
        return np.ascontiguousarray(values.transpose(0, 2, 1))

    def set_recurrent_state(self, layer: int, state: np.ndarray) -> None:
        """RequestError for what is no such state."""
        self._check_delta(layer)
        given = np.asarray(state)
        fits = given.shape == self._state_shape and given.dtype.kind == "f"
        with np.errstate(over="ignore"):
            values = given.astype(np.float32) if fits else given
        if not fits or not np.isfinite(values).all():
            raise RequestError(
                f"state: found {given.dtype} of shape {list(given.shape)}, wanted finite float32 of "
                f"{list(self._state_shape)}"
            )
        self.settle()
        words = np.ascontiguousarray(values.transpose(0, 2, 1))
        self.device.upload(self.state.part("state", self.offsets[layer].recurrent, words.shape), [words])

    @property
    def _state_shape(self) -> tuple[int, int, int]:
        c = self.config
        return c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim

    def _check_delta(self, layer: int) -> None:
        if layer not in self.offsets:
            raise RequestError(f"state: layer {layer} has none, wanted one of {', '.join(map(str, self.offsets))}")

    def _page(self, buffer: Buffer, page: int) -> Buffer:
        return buffer.part(buffer.label, page * self._page_words, (self._page_words,))

    def _read_page(self, buffer: Buffer, page: int, keys: bool) -> np.ndarray:
        """Bits [PAGE, G, Dh] of a page of keys or of values."""
        words = self.device.download(self._page(buffer, page))
        return rows_of_page(words, self.config.num_key_value_heads, self.kv_type, keys=keys)

    def copy_pages(self, source: list[int], target: list[int]) -> None:
        """Keys and values of whole pages -> other pages."""
        words, program = self._page_words, self.device.program("pages")
        for layer in self.kv.values():
            for buffer in (layer.keys, layer.values):
                for a, b in zip(source, target, strict=True):
                    program.copy(buffer, buffer, a * words, b * words, words)
        program.run()

    @property
    def _kv_buffers(self) -> list[Buffer]:
        return [buffer for layer in self.kv.values() for buffer in (layer.keys, layer.values)]

    def read_pages(self, pages: list[int]) -> np.ndarray:
        """Keys and values of all layers, uint32 [2 layers, pages, words]."""
        words = np.empty((len(self._kv_buffers), len(pages), self._page_words), np.uint32)
        for buffer, rows in zip(self._kv_buffers, words, strict=True):
            for page, row in zip(pages, rows, strict=True):
                row[:] = self.device.download(self._page(buffer, page))
        return words

    def write_pages(self, pages: list[int], words: np.ndarray) -> None:
        """What `read_pages` read, into the first of these pages, as much as they hold."""
        for buffer, rows in zip(self._kv_buffers, words, strict=True):
            for page, row in zip(pages, rows, strict=False):
                self.device.upload(self._page(buffer, page), [row])

    def pages_of(self, tenant: object) -> tuple[int, int]:
        """How many pages its caches have on the device, and how many of their content lie in the host's memory."""
        mine = [cache for cache in self.caches if cache.tenant is tenant]
        return sum(len(c.pages) for c in mine), sum(c.away.shape[1] for c in mine if c.away is not None)

    def send_away(self, pages: int) -> None:
        """The keys and values of others whose turn it is not go to the host's memory, the longest first, until so many
        pages are free.
        """
        others = [c for c in self.caches if c.pages and c.tenant in self.tenants and c.tenant is not self.tenant]
        for cache in sorted(others, key=lambda c: -len(c.pages)):
            if len(self.free_pages) < pages:
                cache.leave_pages()

    def clear_state(self) -> None:
        program = self.device.program("state")
        program.fill(self.state)
        program.run()

    def _copy(self, source: Buffer, target: Buffer) -> None:
        program = self.device.program("state")
        program.copy(source, target, 0, 0, self.state.num_bytes // 4)
        program.run()
