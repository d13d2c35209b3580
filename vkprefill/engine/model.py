"""A Qwen3.5 model on a Vulkan device: load, prefill, decode, logits.

Three programs are recorded at load and replayed: `prefill` takes up to prefill_chunk tokens through all layers, `head`
turns the last token's hidden state into logits and candidates, `decode` does both for one token.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from vkprefill.engine.cache import Cache
from vkprefill.engine.cache_pool import CachePool
from vkprefill.engine.capture import AttentionCapture, CaptureRecorder, checked_layers, fill_capture, query_indices
from vkprefill.engine.forward import ForwardPass
from vkprefill.engine.memory import (
    KV_TYPES,
    MAX_CANDIDATES,
    PAGE,
    MemoryBill,
    activation_shapes,
    check_sizes,
    kv_words,
    memory_bill,
    num_pages,
    padded_chunk,
)
from vkprefill.engine.speed_meter import SpeedMeter
from vkprefill.engine.weights import Progress, load_weights
from vkprefill.errors import OutOfMemoryError, RequestError, VkPrefillError
from vkprefill.gguf.config import ModelConfig
from vkprefill.gguf.file import GGUFFile, open_gguf
from vkprefill.gguf.tensors import check_tensors
from vkprefill.text.chat_template import ChatTemplate
from vkprefill.text.tokenizer import Tokenizer
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.program import Program

T = TypeVar("T")
PrefillProgress = Callable[[int, int], None]
"""progress(tokens done, tokens in all), called between submissions."""

LOGITS_ROWS = 32  # tokens whose whole logits rows are computed together by Model.logits


def load(
    path: str | os.PathLike[str],
    device: str | int | Device | None = None,
    max_context: int | None = None,
    kv_type: str = "f16",
    *,
    prefill_chunk: int | None = None,
    reserve_bytes: int = 0,
    progress: Progress | None = None,
) -> Model:
    """Load a GGUF model.

    device: index or part of a name (None: the fastest kind there is), or the device of another model, which must be
    closed last; max_context: slots of the KV cache, shared by all caches (None: the file's context length, or what fits
    in memory); kv_type: "f16" or "f32"; prefill_chunk: most tokens of a step of prefill (None: by device);
    reserve_bytes: left free when the context is chosen, for a second model. Raises GGUFError, UnsupportedModelError,
    DeviceError, OutOfMemoryError, RequestError.
    """
    return Model(open_gguf(path), device, max_context, kv_type, prefill_chunk, reserve_bytes, progress)


class Model:
    """See `load`. A context manager: leaving it frees the device.

    config, tokenizer, chat_template (None without one in the file), metadata, device, memory (the bill, bytes by kind),
    max_context, kv_type, prefill_chunk.
    """

    def __init__(
        self,
        file: GGUFFile,
        device: str | int | Device | None,
        max_context: int | None,
        kv_type: str,
        prefill_chunk: int | None,
        reserve_bytes: int,
        progress: Progress | None,
    ) -> None:
        if kv_type not in KV_TYPES:
            raise RequestError(f"kv_type: {kv_type!r}, wanted one of {', '.join(KV_TYPES)}")
        check_sizes(max_context, prefill_chunk)
        report = progress or (lambda stage, done, total: None)
        report("reading the file", 0, 1)
        self.path = file.path
        self.metadata = file.metadata
        self.config = ModelConfig.from_gguf(file)
        check_tensors(file, self.config)
        self.tokenizer = Tokenizer.from_metadata(file.metadata, self.config.vocab_size)
        template = file.metadata.get("tokenizer.chat_template")
        self.chat_template = None if template is None else ChatTemplate(template, self.tokenizer)
        self.kv_type = kv_type
        half = self.config.rotary_dim // 2
        self._frequencies = self.config.rope_theta ** (-np.arange(half) / half)
        self.meter = SpeedMeter()
        report("opening the device", 0, 1)
        self._owns_device = not isinstance(device, Device)
        self.device = Device.open(device) if self._owns_device else device
        try:
            self._allocate_and_record(file, max_context, prefill_chunk, reserve_bytes, report)
        except BaseException:
            self.close()
            raise

    def _allocate_and_record(
        self, file: GGUFFile, max_context: int | None, prefill_chunk: int | None, reserve_bytes: int, report: Progress
    ) -> None:
        self.prefill_chunk = prefill_chunk or _chunk_for(self.config, self.device)
        splits = self.device.profile.attention_splits

        def bill_for(context: int) -> MemoryBill:
            return memory_bill(
                file,
                self.config,
                max_context=context,
                kv_type=self.kv_type,
                prefill_chunk=self.prefill_chunk,
                attention_splits=splits,
            )

        self.max_context = max_context or _longest_context(
            self.config, self.kv_type, self.device, bill_for, reserve_bytes
        )
        _check_context(self.config, self.kv_type, self.device, self.max_context)
        self.memory = bill_for(self.max_context)
        self.device.require(self.memory.total, f"{file.label} with a context of {self.max_context} tokens")
        self._buffers: list[Buffer] = []  # to free one by one where the device is another model's
        self.pool = CachePool(self.device, self.config, self.max_context, self.kv_type)
        self._buffers += self.pool.buffers()
        self.scratch = {
            name: self.device.buffer(name, shape, dtype, memory=memory, kind="activations")
            for name, (shape, dtype, memory) in activation_shapes(
                self.config, padded_chunk(self.prefill_chunk), splits
            ).items()
        }
        self._buffers += self.scratch.values()
        # Products run over whole tiles of rows. What lies past the last token is dropped, but the denormal numbers that
        # used memory is full of would cost a CPU five times the time.
        self.device.clear(list(self.scratch.values()))
        weights = load_weights(file, self.config, self.device, report)
        self._buffers += weights.pools
        self.forward = ForwardPass(self.device, self.config, self.pool, self.scratch, weights)
        if self._owns_device and self.device.info.type != "cpu":
            report("timing the device", 0, 1)
            self.forward.fit_submissions(padded_chunk(self.prefill_chunk))
            self.prefill_chunk = prefill_chunk or min(self.prefill_chunk, _chunk_for(self.config, self.device))
        report("recording", 0, 3)
        self.prefill_program = self.forward.record_trunk("prefill", padded_chunk(self.prefill_chunk))
        report("recording", 1, 3)
        self._head_program = self.forward.record_head()
        report("recording", 2, 3)
        self._decode_program = self.forward.record_trunk("decode", 1, with_head=True)
        self._logits_program: Program | None = None
        report("recording", 3, 3)

    # -- running -------------------------------------------------------------------------------------------------------

    def new_cache(self, max_context: int | None = None) -> Cache:
        """An empty cache of at most max_context tokens (None: all that the model was loaded for). It takes memory as it
        grows.
        """
        if max_context is not None and not 1 <= max_context <= self.pool.num_slots:
            raise RequestError(f"max_context: {max_context}, wanted 1 to {self.pool.num_slots}")
        return Cache(self.pool, min(max_context or self.max_context, self.pool.num_slots))

    def prefill(
        self,
        token_ids: Sequence[int],
        positions: Sequence[int] | None = None,
        cache: Cache | None = None,
        capture: AttentionCapture | None = None,
        progress: PrefillProgress | None = None,
    ) -> np.ndarray:
        """Run tokens through the model, continuing the cache; logits float32 [V] of the last one.

        positions: increasing, above those in the cache (None: from the cache's next_position on). Without a cache
        nothing is kept.
        capture: filled with the attention rows of its queries; the logits are the same bits with and without.
        An exception inside, KeyboardInterrupt too, leaves the cache as it was. Raises RequestError for bad tokens or
        positions.
        """
        with self._borrowed(cache) as cache:
            if capture is None:
                return self.run_prefill(token_ids, positions, cache, progress, self._head_logits)
            return self._prefill_with_capture(token_ids, positions, cache, capture, progress)

    def extend(
        self,
        token_ids: Sequence[int],
        cache: Cache,
        *,
        positions: Sequence[int] | None = None,
        progress: PrefillProgress | None = None,
    ) -> None:
        """As prefill, without logits: the cache only grows."""
        self.run_prefill(token_ids, positions, cache, progress)

    def decode(self, token_id: int, cache: Cache, capture: AttentionCapture | None = None) -> np.ndarray:
        """Run one token at the cache's next position; logits float32 [V]. capture: filled with the token's attention
        rows.
        """
        if capture is None:
            self.run_decode(token_id, cache, num_candidates=0)
        else:
            recorder = self._recorder(capture, 1, 1, len(cache) + 1)
            self.run_decode(token_id, cache, 0, program=lambda: recorder.program(1, [0], [0], len(cache) + 1))
            fill_capture(capture, recorder, cache, np.array([len(cache) - 1]), self.config)
        return self._logits()

    def _prefill_with_capture(
        self,
        token_ids: Sequence[int],
        positions: Sequence[int] | None,
        cache: Cache,
        capture: AttentionCapture,
        progress: PrefillProgress | None,
    ) -> np.ndarray:
        queries, before = query_indices(capture.queries, len(token_ids)), len(cache)
        num_keys = before + len(token_ids)
        recorder = self._recorder(capture, len(queries), min(len(queries), self.prefill_chunk), num_keys)

        def program(first: int, count: int) -> Program:
            (rows,) = np.nonzero((queries >= first) & (queries < first + count))
            if not len(rows):
                return self.prefill_program
            return recorder.program(padded_chunk(self.prefill_chunk), queries[rows] - first, rows, num_keys)

        logits = self.run_prefill(token_ids, positions, cache, progress, self._head_logits, program)
        fill_capture(capture, recorder, cache, before + queries, self.config)
        return logits

    def _recorder(self, capture: AttentionCapture, num_queries: int, most: int, num_keys: int) -> CaptureRecorder:
        """The capture's recorder if it suffices, else a new one in its place."""
        layers = checked_layers(capture.layers, self.config)
        if capture._recorder is None or not capture._recorder.fits(self, layers, num_queries, most, num_keys):
            if capture._recorder is not None:
                capture._recorder.free()
                capture._recorder = None
            capture._recorder = CaptureRecorder(self, layers, num_queries, most, num_keys)
        return capture._recorder

    def logits(
        self,
        token_ids: Sequence[int],
        positions: Sequence[int] | None = None,
        *,
        progress: PrefillProgress | None = None,
    ) -> np.ndarray:
        """Logits float32 [T, V] of every token of a sequence of its own: 4 T V bytes on the host."""
        ids, positions = self._check_tokens(token_ids, positions, 0, -1)
        rows = np.empty((len(ids), self.config.vocab_size), np.float32)
        with self._borrowed(None) as cache:
            while (start := len(cache)) < len(ids):
                stop = min(
                    start + LOGITS_ROWS, start + self._tokens_per_run(start), len(ids)
                )  # one run: its rows are still in x
                self.run_prefill(ids[start:stop], positions[start:stop], cache, None)
                rows[start:stop] = self._run_all_logits(stop - start)
                if progress:
                    progress(stop, len(ids))
        return rows

    def prefill_candidates(
        self,
        token_ids: Sequence[int],
        cache: Cache,
        num_candidates: int,
        *,
        positions: Sequence[int] | None = None,
        penalty: float = 0.0,
        progress: PrefillProgress | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """As prefill, but only the best tokens come back: (ids int64 [k], logits float32 [k]), best first.

        num_candidates: 1 to MAX_CANDIDATES; penalty is taken from the logits of tokens noted by mark_seen.
        """
        _check_count(num_candidates)

        return self.run_prefill(
            token_ids, positions, cache, progress, lambda: self.head_candidates(num_candidates, penalty)
        )

    def decode_candidates(
        self, token_id: int, cache: Cache, num_candidates: int, *, penalty: float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """As decode, but only the best tokens come back: see prefill_candidates."""
        _check_count(num_candidates)
        self.run_decode(token_id, cache, num_candidates, penalty)
        return self.candidates(num_candidates)

    def kernels(self) -> list[str]:
        """Names of the shaders that prefill and decode use."""
        return sorted({label for p in (self.prefill_program, self._decode_program) for label in p.shaders})

    def mark_seen(self, token_ids: Sequence[int]) -> None:
        """The tokens, and only those, that the penalty of the *_candidates calls applies to."""
        bits = np.zeros(self.scratch["seen"].shape[0] * 32, np.uint8)
        if len(token_ids):
            bits[self._check_ids(token_ids)] = 1
        self.scratch["seen"].view()[:] = np.packbits(bits, bitorder="little").view(np.uint32)

    def _borrowed(self, cache: Cache | None) -> _Borrowed:
        return _Borrowed(cache) if cache is not None else _Borrowed(self.new_cache(), close=True)

    def run_prefill(
        self,
        token_ids: Sequence[int],
        positions: Sequence[int] | None,
        cache: Cache,
        progress: PrefillProgress | None,
        head: Callable[[], T] | None = None,
        program_for: Callable[[int, int], Program] | None = None,
    ) -> T | None:
        """All tokens through the trunk, in chunks; the last hidden state is for the head, whose result is returned.

        program_for(first, count): another program than the plain one for these tokens of the call.
        """
        self._check_cache(cache)
        last = cache.positions[-1] if len(cache) else -1
        ids, positions = self._check_tokens(token_ids, positions, cache.next_position, last)
        cache.reserve(len(ids))
        cache.begin()
        done, start = 0, time.perf_counter()
        try:
            cache.broken = True  # until all is done, or undone
            while done < len(ids):
                count = min(self._tokens_per_run(len(cache)), len(ids) - done)
                chunk = slice(done, done + count)
                self._set_step(ids[chunk], positions[chunk], len(cache))
                program = program_for(done, count) if program_for else self.prefill_program
                per_submission = count / program.num_submissions
                ran = 0

                def between(done: int = done, per_submission: float = per_submission) -> None:
                    nonlocal ran
                    ran += 1
                    if progress:
                        progress(min(len(ids), int(done + ran * per_submission)), len(ids))

                program.run(between)
                cache.append(ids[chunk].tolist(), positions[chunk].tolist())
                done += count
            self.meter.prefilled(len(ids), time.perf_counter() - start)
            result = head() if head else None
            cache.broken = False
            return result
        except BaseException:
            if not self.device.lost:
                cache.undo()
            raise

    def run_decode(
        self,
        token_id: int,
        cache: Cache,
        num_candidates: int,
        penalty: float = 0.0,
        program: Callable[[], Program] | None = None,
    ) -> None:
        self._check_cache(cache)
        last = cache.positions[-1] if len(cache) else -1
        ids, positions = self._check_tokens([token_id], None, cache.next_position, last)
        cache.reserve(1)
        self._set_step(ids, positions, len(cache), num_candidates, penalty)
        cache.broken = True
        start = time.perf_counter()
        (program() if program else self._decode_program).run()
        self.meter.decoded(time.perf_counter() - start)
        cache.append(ids.tolist(), positions.tolist())
        cache.broken = False

    def head_candidates(self, num_candidates: int, penalty: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """Candidates of the last token of the last run."""
        self._set_sampling(num_candidates, penalty)
        self._head_program.run()
        return self.candidates(num_candidates)

    def _head_logits(self) -> np.ndarray:
        self._head_program.run()
        return self._logits()

    def _run_all_logits(self, num_tokens: int) -> np.ndarray:
        """Logits of all tokens of the last run, which has at most LOGITS_ROWS."""
        if self._logits_program is None:
            self._all_logits = self.device.buffer(
                "all_logits", (LOGITS_ROWS, self.config.vocab_size), memory="host", kind="logits"
            )
            self._buffers.append(self._all_logits)
            self._logits_program = self.forward.record_logits(self._all_logits)
        self._logits_program.run()
        return self._all_logits.view()[:num_tokens]

    def _logits(self) -> np.ndarray:
        return _finite(self.scratch["logits"].read(), "logits")

    def candidates(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        raw = self.scratch["candidates"].view()[:count].copy()
        logits = _finite(raw[:, 0].view(np.float32), "candidates")
        return raw[:, 1].astype(np.int64), logits

    def _set_step(
        self, ids: np.ndarray, positions: np.ndarray, cache_len: int, num_candidates: int = 0, penalty: float = 0.0
    ) -> None:
        s = self.scratch
        s["step"].view()[:2] = len(ids), cache_len
        s["token_ids"].view()[: len(ids)] = ids
        angles = positions[:, None] * self._frequencies
        s["rope"].view()[: len(ids)] = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
        self._set_sampling(num_candidates, penalty)

    def _set_sampling(self, num_candidates: int, penalty: float) -> None:
        self.scratch["step"].view()[2:4] = np.float32(penalty).view(np.uint32), num_candidates

    def _tokens_per_run(self, cache_len: int) -> int:
        """Fewer tokens where the past is long, so that the attention of one layer stays below the bound of a
        submission.
        """
        per_token = 4.0 * self.config.q_dim * (cache_len + self.prefill_chunk)
        return max(1, min(self.prefill_chunk, int(self.device.profile.submission_flop / per_token)))

    def _check_tokens(
        self, token_ids: Sequence[int], positions: Sequence[int] | None, first: int, last: int
    ) -> tuple[np.ndarray, np.ndarray]:
        ids = self._check_ids(token_ids)
        where = np.arange(first, first + len(ids)) if positions is None else _integers(positions, "positions")
        if where.shape != ids.shape:
            raise RequestError(f"positions: found {len(where)}, wanted {len(ids)}, one for each token")
        if where[0] <= last or (np.diff(where) <= 0).any() or where[-1] >= 1 << 31:
            raise RequestError(
                f"positions: must increase, from above {last} to below 2^31; found {where[0]} to {where[-1]}"
            )
        return ids, where

    def _check_ids(self, token_ids: Sequence[int]) -> np.ndarray:
        ids = _integers(token_ids, "token_ids")
        if ids.min() < 0 or ids.max() >= self.config.vocab_size:
            bad = ids[(ids < 0) | (ids >= self.config.vocab_size)][0]
            raise RequestError(f"token_ids: found {bad}, wanted 0 to {self.config.vocab_size - 1}")
        return ids

    def _check_cache(self, cache: Cache) -> None:
        if not isinstance(cache, Cache) or cache.pool is not self.pool:
            raise RequestError("cache: wanted one made by this model's new_cache")

    # -- end -----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Free everything on the device. The model and its caches cannot be used afterwards; closing twice does
        nothing.
        """
        if self._owns_device:
            self.device.close()
            return
        for buffer in self._buffers:
            buffer.free()
        self._buffers.clear()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Borrowed:
    """A caller's cache, or one of our own that is closed at the end."""

    def __init__(self, cache: Cache, close: bool = False) -> None:
        self.cache, self.close = cache, close

    def __enter__(self) -> Cache:
        return self.cache

    def __exit__(self, *_: object) -> None:
        if self.close:
            self.cache.close()


def _integers(values: Sequence[int], what: str) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError:  # nested, of unequal lengths
        array = np.asarray(None)
    if array.ndim != 1 or len(array) == 0 or array.dtype.kind not in "iu":
        raise RequestError(f"{what}: found {array.dtype} of shape {array.shape}, wanted at least one integer")
    return np.minimum(array, 2**63 - 1).astype(np.int64)


def _check_count(num_candidates: int) -> None:
    if not 1 <= num_candidates <= MAX_CANDIDATES:
        raise RequestError(f"num_candidates: {num_candidates}, wanted 1 to {MAX_CANDIDATES}")


def _finite(values: np.ndarray, what: str) -> np.ndarray:
    if not np.isfinite(values).all():
        raise VkPrefillError(f"{what}: found NaN or infinity: the model's activations overflow float32 on this input")
    return values


def _chunk_for(config: ModelConfig, device: Device) -> int:
    """The profile's chunk, or less where one dispatch of the largest matrix would pass the bound of a submission."""
    widest = max(config.intermediate_size, config.conv_dim, 2 * config.q_dim)
    most = int(device.profile.submission_flop / (2.0 * widest * config.hidden_size))
    return max(32, min(device.profile.prefill_chunk, most // 32 * 32))


def _longest_context(
    config: ModelConfig, kv_type: str, device: Device, bill_for: Callable[[int], MemoryBill], reserve_bytes: int
) -> int:
    """The file's context length, or as many pages as fit beside the weights and in one buffer."""
    page_bytes = kv_words(config, kv_type) * 4
    free = device.available_bytes() * 0.9 - bill_for(PAGE).total - reserve_bytes
    pages = min(
        num_pages(config.max_position_embeddings),
        device.info.max_buffer_bytes // page_bytes,
        int(free // (2 * page_bytes * len(config.attention_layers))),
    )
    if pages < 1:
        device.require(bill_for(PAGE).total, f"{config.name} with a context of {PAGE} tokens")
        raise OutOfMemoryError(f"{config.name}: no room for a KV cache beside the weights on {device.info.name}")
    return min(config.max_position_embeddings, pages * PAGE)


def _check_context(config: ModelConfig, kv_type: str, device: Device, max_context: int) -> None:
    """OutOfMemoryError for a context whose keys of one layer are more than the device allows in one buffer."""
    most = device.info.max_buffer_bytes // (kv_words(config, kv_type) * 4) * PAGE
    if max_context > most:
        limit = device.info.max_buffer_bytes / 2**20
        raise OutOfMemoryError(
            f"context of {max_context} tokens: {device.info.name} allows {limit:,.0f} MiB in one buffer, "
            f"which is {most} tokens of a layer's keys in {kv_type}"
        )
