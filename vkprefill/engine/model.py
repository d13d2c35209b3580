"""A Qwen3.5 model on a Vulkan device, as a user sees it: load, prefill, decode, logits."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from numbers import Integral

import numpy as np

from vkprefill.checks import MOST_INTEGER, check_number
from vkprefill.engine.cache import Cache
from vkprefill.engine.capture import AttentionCapture, query_indices
from vkprefill.engine.cpu_loads import choose_loads
from vkprefill.engine.drafter import Drafter
from vkprefill.engine.memory import LoadOptions
from vkprefill.engine.microscope.activations import ActivationCache
from vkprefill.engine.microscope.edits import Edit
from vkprefill.engine.microscope.names import Name
from vkprefill.engine.microscope.record import Recorder, Wish
from vkprefill.engine.microscope.steering import Steer, Steering, directions
from vkprefill.engine.outline import Outline
from vkprefill.engine.rows import Rows
from vkprefill.engine.runner import LOGITS_ROWS, PrefillProgress, Runner
from vkprefill.engine.sizes import HEAD_ROWS
from vkprefill.engine.step_input import Best
from vkprefill.engine.token_input import checked_ids, checked_positions
from vkprefill.engine.weights import Progress
from vkprefill.gguf.file import GGUFFile, open_gguf
from vkprefill.gguf.mtp import find_block
from vkprefill.vulkan.device import Device


def load(
    path: str | os.PathLike[str],
    device: str | int | Device | None = None,
    max_context: int | None = None,
    kv_type: str = "f16",
    *,
    prefill_chunk: int | None = None,
    reserve_bytes: int = 0,
    precision: str = "auto",
    mtp: str | os.PathLike[str] | None = "auto",
    mtp_window: int | None = None,
    steer: Steer | Sequence[Steer] = (),
    progress: Progress | None = None,
) -> Model:
    """Load a GGUF model.

    device: index or part of a name (None: the fastest kind there is), or the device of another model, which must be
    closed last; max_context: slots of the KV cache, shared by all caches (None: the file's context length, or what fits
    in memory); kv_type: "f16" or "f32"; prefill_chunk: most tokens of a step of prefill (None: by device);
    reserve_bytes: left free when the context is chosen, for a second model (with a max_context the device must have as
    much, no more); precision: of prefill's products, "full"
    float32, "half" sums in float32 of products of halves, "auto" half where the device has an instruction for them;
    mtp: the multi-token-prediction block, for drafts of tokens: "auto" the file's, where it has one, None none, or the
    path of a companion file that holds the block alone, used in place of the file's own; mtp_window: tokens at the end
    of a prompt that the block looks back to, in whole pages (None: all, which costs prefill less than one part in a
    hundred); steer: control vectors that all of its runs are steered by, so that none of its caches was made without
    them. Raises GGUFError,
    UnsupportedModelError, DeviceError, OutOfMemoryError, RequestError.
    """
    options = LoadOptions(max_context, kv_type, prefill_chunk, reserve_bytes, precision, mtp_window)
    return Model(open_gguf(path), device, options, progress, mtp, steer)


class Model(Outline):
    """See `load`. A context manager: leaving it frees the device. For one thread at a time: a second one is refused.

    config, tokenizer, chat_template (None without one in the file), metadata, device, memory (the bill, bytes by kind),
    max_context, kv_type, prefill_chunk, precision ("full" or "half"), has_mtp (a multi-token-prediction block is
    loaded). runner: what the engine's own parts record programs with.
    """

    def __init__(
        self,
        file: GGUFFile,
        device: str | int | Device | None,
        options: LoadOptions,
        progress: Progress | None,
        mtp: str | os.PathLike[str] | None = None,
        steer: Steer | Sequence[Steer] = (),
    ) -> None:
        report = progress or (lambda stage, done, total: None)
        report("reading the file", 0, 1)
        super().__init__(file)
        vectors = directions(steer, self.config)
        block = find_block(file, self.config, mtp)
        self.kv_type = options.kv_type
        report("opening the device", 0, 1)
        self._owns_device = not isinstance(device, Device)
        self.device = Device.open(device) if self._owns_device else device
        self.runner: Runner | None = None
        try:
            if self._owns_device:
                choose_loads(self.device)
            self.runner = Runner(file, self.config, self.device, options, report, block)
            if self._owns_device and self.device.info.type != "cpu":
                report("timing the device", 0, 1)
                self.runner.fit_submissions(options.prefill_chunk)
            if vectors:
                steering = Steering(self.device, vectors, self.runner.sizes.rows)
                self.runner.companions["steering"] = self.runner.forward.always = steering
                self.runner.memory = replace(self.runner.memory, points=steering.num_bytes)
            self.runner.record(report)
        except BaseException:
            self.close()
            raise
        self.memory = self.runner.memory
        self.max_context = self.runner.sizes.max_context
        self.prefill_chunk = self.runner.sizes.prefill_chunk
        self.precision = "half" if self.runner.sizes.half else "full"
        self.has_mtp = block is not None
        self._drafter: Drafter | None = None

    def new_cache(self, max_context: int | None = None) -> Cache:
        """An empty cache of at most max_context tokens (None: all that the model was loaded for). It takes memory as it
        grows.
        """
        return self.runner.new_cache(max_context)

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
        run, head = self.runner, self.runner.head_logits
        with _Borrowed(self, cache) as cache:
            if capture is None:
                return run.prefill(token_ids, cache, positions=positions, head=head, progress=progress)
            queries, before = query_indices(capture.queries, len(token_ids)), len(cache)
            with run.turn:
                recorder = capture.recorder_for(run, cache, queries, len(token_ids))
                logits = run.prefill(
                    token_ids,
                    cache,
                    positions=positions,
                    head=head,
                    program_for=recorder.prefill_program,
                    progress=progress,
                )
                capture.fill(recorder, cache, before + queries)
            return logits

    def extend(
        self,
        token_ids: Sequence[int],
        cache: Cache,
        *,
        positions: Sequence[int] | None = None,
        progress: PrefillProgress | None = None,
    ) -> None:
        """As prefill, without logits: the cache only grows."""
        self.runner.prefill(token_ids, cache, positions=positions, progress=progress)

    def decode(self, token_id: int, cache: Cache, capture: AttentionCapture | None = None) -> np.ndarray:
        """Run one token at the cache's next position; logits float32 [V]. capture: filled with the token's attention
        rows.
        """
        run = self.runner
        if capture is None:
            return run.decode(token_id, cache, run.logits)
        with run.turn:
            recorder = capture.recorder_for(run, cache, np.zeros(1, np.int64), 1)
            logits = run.decode(token_id, cache, run.logits, program=recorder.decode_program)
            capture.fill(recorder, cache, np.array([len(cache) - 1]))
        return logits

    def logits(
        self,
        token_ids: Sequence[int],
        positions: Sequence[int] | None = None,
        *,
        progress: PrefillProgress | None = None,
    ) -> np.ndarray:
        """Logits float32 [T, V] of every token of a sequence of its own: 4 T V bytes on the host."""
        ids = checked_ids(token_ids, self.config.vocab_size)
        rows = np.empty((len(ids), self.config.vocab_size), np.float32)
        with closing(self.logit_rows(ids, positions, progress=progress)) as parts:
            for start, some in parts:
                rows[start : start + len(some)] = some
        return rows

    def logit_rows(
        self,
        token_ids: Sequence[int],
        positions: Sequence[int] | None = None,
        *,
        progress: PrefillProgress | None = None,
    ) -> Generator[tuple[int, np.ndarray], None, None]:
        """The same, some rows at a time: (index of the first one, rows), which the next step overwrites. The model is
        in use until it is closed.
        """
        run, ids = self.runner, checked_ids(token_ids, self.config.vocab_size)
        positions = checked_positions(positions, len(ids), first=0, last=-1)
        with run.turn, _Borrowed(self, None) as cache:
            while (start := len(cache)) < len(ids):
                # one run: its rows are still in x
                stop = min(start + LOGITS_ROWS, start + run.tokens_per_run(start), len(ids))

                def head(count: int = stop - start) -> np.ndarray:
                    return run.all_logits(count)

                yield start, run.prefill(ids[start:stop], cache, positions=positions[start:stop], head=head)
                if progress:
                    progress(stop, len(ids))

    def record(
        self,
        prompt_or_ids: str | Sequence[int],
        names: Name | Sequence[Name],
        *,
        tokens: str | slice = "last",
        steps: str = "prefill",
        max_tokens: int = 0,
        edits: Edit | Iterable[Edit] = (),
        positions: Sequence[int] | None = None,
        progress: PrefillProgress | None = None,
    ) -> ActivationCache:
        """Run a prompt (text as it stands, or token ids) on a cache of its own; what is computed at named points.

        names: of `points`, with * for any text; "resid_post" for that of every layer; ("q", 3) or ("q", 3, "attn") for
        one. tokens: of the prompt that are recorded: "last", "all" or a slice; steps: "prefill", "decode" or "both";
        max_tokens: tokens generated after it, the most probable each time. edits: changes on the way, in order.
        positions: as for prefill. Memory is linear in what is asked. Raises RequestError for names that are none, with
        those near them, OutOfMemoryError, with the numbers, before anything runs.
        """
        wish = Wish.of(self.runner, names, tokens, steps, max_tokens)
        recorder = self.recorder(wish)
        try:
            return recorder.record(self._ids(prompt_or_ids), positions, edits, progress)
        finally:
            recorder.close()

    def recorder(self, wish: Wish) -> Recorder:
        """For many prompts, one after another, with the same wish."""
        return Recorder(self.runner, wish, self.tokenizer.eog_token_ids)

    def _ids(self, prompt: str | Sequence[int]) -> Sequence[int]:
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt

    def prefill_candidates(
        self,
        token_ids: Sequence[int],
        cache: Cache,
        best: Best,
        *,
        positions: Sequence[int] | None = None,
        progress: PrefillProgress | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """As prefill, but only the best tokens come back: (ids int64 [k], logits float32 [k]), best first."""
        run = self.runner
        return run.prefill(
            token_ids, cache, positions=positions, head=lambda: run.head_candidates(best), progress=progress
        )

    def decode_candidates(self, token_id: int, cache: Cache, best: Best) -> tuple[np.ndarray, np.ndarray]:
        """As decode, but only the best tokens come back: see prefill_candidates."""
        return self.runner.decode(token_id, cache, lambda: self.runner.candidates(best), best=best)

    def drafter(self, head_rows: int = HEAD_ROWS) -> Drafter:
        """What drafts tokens with the multi-token-prediction block; head_rows: see Drafter, to which special tokens are
        added. The same one for the same head_rows as the call before. Raises RequestError without a block
        and for bad head_rows.
        """
        check_number("head_rows", head_rows, Integral, 0, MOST_INTEGER)
        if self._drafter is None or self._drafter.head_rows != head_rows:
            self._drafter = Drafter(self.runner, head_rows, self.tokenizer.special_tokens.values())
        return self._drafter

    def run_rows(self, token_ids: list[int], cache: Cache, best: Best | None = None) -> Rows:
        """Run 1 to 8 tokens at the cache's next positions; those whose results are taken become part of the cache.

        The bits of a token's results do not depend on those after it. best: see prefill_candidates; None: whole rows of
        logits.
        """
        return Rows(self.runner, cache, token_ids, best)

    def kernels(self) -> list[str]:
        """Names of the shaders that prefill and decode use."""
        return sorted(self.runner.prefill_program.shaders | self.runner.decode_program.shaders)

    def close(self) -> None:
        """Free everything on the device. The model and its caches cannot be used afterwards; closing twice does
        nothing.
        """
        if self.runner is not None and not self._owns_device:
            self.runner.close()
        if self._owns_device:
            self.device.close()
            if self.runner is not None:
                self.runner.let_go()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Borrowed:
    """A caller's cache, or one of our own that is closed at the end."""

    def __init__(self, model: Model, cache: Cache | None) -> None:
        self._own = cache is None
        self._cache = model.new_cache() if cache is None else cache

    def __enter__(self) -> Cache:
        return self._cache

    def __exit__(self, *_: object) -> None:
        if self._own:
            self._cache.close()
