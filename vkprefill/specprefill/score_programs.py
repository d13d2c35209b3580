"""The draft's programs that write softmax rows and reduce them to importance, kept with the draft between prompts.

All scorers of a draft share them: the draft runs one prompt at a time, and nothing of a prompt stays in them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakSet

import numpy as np

from vkprefill.engine import kernels
from vkprefill.engine.capture import RowTap
from vkprefill.engine.runner import Runner
from vkprefill.engine.sizes import PAGE
from vkprefill.engine.step import StepWord
from vkprefill.engine.step_input import cos_sin
from vkprefill.errors import RequestError
from vkprefill.rounding import round_up
from vkprefill.vulkan.program import Program

STRIDE = 4 * PAGE  # keys that a row's length is rounded up to: a little longer prompt needs no new programs
ROWS_BYTES = 256 << 20  # of the rows at a time: more queries take more runs
KEPT_BYTES = 64 << 20  # of the buffers that stay with a draft between prompts
KEPT_PROGRAMS = 4  # so many kinds of scoring at most


@dataclass(frozen=True)
class ScoreKind:
    """What programs are recorded for: which layers count, whether tokens are looked ahead for, how many queries the
    prompt has at most, how wide the mean over neighbours is; whole: the last layer runs to its end, since what comes
    after it goes on from there; before_rotary: the rows are of queries and keys as they were before it.
    """

    layers: tuple[int, ...]
    lookahead: bool
    queries: int
    pool_size: int
    whole: bool = False
    before_rotary: bool = False

    @property
    def last_layer(self) -> int | None:
        """After which the draft stops; None: look-ahead needs all."""
        return None if self.lookahead else self.layers[-1]


class ScorePrograms:
    """For prompts with up to `stride` keys. A run takes at most `most` queries."""

    def __init__(self, run: Runner, kind: ScoreKind, num_keys: int) -> None:
        self.kind, self._run = kind, run
        self.stride = round_up(num_keys, STRIDE)
        device, heads = run.device, run.config.num_attention_heads
        row_bytes = 4 * heads * self.stride
        limit = min(ROWS_BYTES, device.info.max_buffer_bytes)
        self.most = max(1, min(kind.queries, run.sizes.prefill_chunk, limit // row_bytes))
        self.num_bytes = self.most * (row_bytes + 4 * self.stride) + 4 * self.stride
        if kind.before_rotary:
            self.num_bytes += 4 * run.config.rotary_dim * self.stride
        device.require(self.num_bytes, f"scoring of {num_keys} prompt tokens with {self.most} queries at a time")
        with device.freed_on_error():
            self._allocate_and_record()

    def _allocate_and_record(self) -> None:
        run, kind, device = self._run, self.kind, self._run.device
        shape = self.most, run.config.num_attention_heads, self.stride
        self._rows = device.buffer("score_rows", shape, kind="scoring")
        self._best = device.buffer("score_best", (self.most, self.stride), kind="scoring")
        self._total = device.buffer("importance", (self.stride,), kind="scoring")
        self._turns = None
        if kind.before_rotary:
            turns = run.config.rotary_dim // 2, self.stride, 2
            self._turns = device.buffer("score_turns", turns, kind="scoring")
        self._tap = RowTap(run, self.most, "scoring")
        self._clear = run.device.program("clear importance")
        self._clear.fill(self._total)
        trunk, rows, last = run.forward.record_trunk, run.sizes.rows, kind.last_layer
        if kind.whole:
            self._plain = run.split.early_program(last)
            self._scored = self._sum(run.split.record_early("score", last, self._record))
        else:
            self._plain = run.prefill_program if last is None else trunk("draft", rows, last_layer=last)
            self._scored = self._sum(trunk("score", rows, self._record, last_layer=last))
        self._decode = self._sum(run.forward.record_rows("lookahead", 1, self._record)) if kind.lookahead else None
        self._num_tokens = 0

    def _record(self, p: Program, layer: int) -> None:
        layers = self.kind.layers
        if layer in layers:
            self._tap.record(p, layer, self._rows, self._turns)
            kernels.importance(p, self._rows, self._best, pool_size=self.kind.pool_size, first=layer == layers[0])

    def _sum(self, p: Program) -> Program:
        kernels.importance_sum(p, self._best, self._total)
        return p

    def start(self, num_tokens: int, positions: np.ndarray) -> None:
        """A prompt of which num_tokens keys are to have importance; positions: of all slots that there will be."""
        self._num_tokens = num_tokens
        self._clear.run()
        if self._turns is not None:
            self._run.device.upload(self._turns, self._turns_of(positions))

    def _turns_of(self, positions: np.ndarray) -> Iterator[np.ndarray]:
        """float32 [stride, 2] for each frequency of the rotary: cosine and sine of the angle in each slot."""
        for frequency in self._run.step.frequencies:
            turns = np.zeros((self.stride, 2), np.float32)
            turns[: len(positions)] = cos_sin(positions * frequency)
            yield turns

    def prefill(self, queries: range) -> Program:
        """For a run of which these tokens are queries."""
        if not len(queries):
            return self._plain
        self._choose(queries)
        return self._scored

    def decode(self) -> Program:
        self._choose(range(1))
        return self._decode

    def _choose(self, queries: range) -> None:
        self._tap.choose(queries, range(len(queries)), self._num_tokens)
        self._run.step.set_words({StepWord.PROMPT_KEYS: self._num_tokens})

    def total(self) -> np.ndarray:
        """float32 [T]: the sum over steps; all that is read back."""
        return self._total.part("importance", 0, (self._num_tokens,)).read()

    def free(self) -> None:
        self._tap.free()
        for buffer in (self._rows, self._best, self._total, self._turns):
            if buffer is not None:
                buffer.free()


class ProgramStore:
    """The programs of one draft, for all that score with it; `users` are those. Closed with the draft."""

    def __init__(self, run: Runner) -> None:
        self._run = run
        self._in_use: ScoreKind | None = None
        self.programs: OrderedDict[ScoreKind, ScorePrograms] = OrderedDict()  # those used last at the end
        self.users: WeakSet[object] = WeakSet()
        run.device.spare.add(self)

    @classmethod
    def of(cls, run: Runner) -> ProgramStore:
        """The one of this draft."""
        if not isinstance(run.companions.get("scoring"), cls):
            run.companions["scoring"] = cls(run)
        return run.companions["scoring"]

    @contextmanager
    def borrow(self, kind: ScoreKind, num_keys: int) -> Iterator[ScorePrograms]:
        """Programs for a prompt with this many keys, recorded unless they are there. Afterwards those that were not
        used for long are given back, and where all take more than KEPT_BYTES, the largest.
        """
        if self._in_use:
            raise RequestError("scoring: begun while the draft scores another prompt")
        try:
            self._in_use = kind
            yield self._recorded(kind, num_keys)
        finally:
            self._in_use = None
            self._trim()

    def _recorded(self, kind: ScoreKind, num_keys: int) -> ScorePrograms:
        programs = self.programs.get(kind)
        if programs is None or programs.stride < num_keys:
            self._drop(kind)
            programs = self.programs[kind] = ScorePrograms(self._run, kind, num_keys)
        self.programs.move_to_end(kind)
        return programs

    def _trim(self) -> None:
        while len(self.programs) > KEPT_PROGRAMS:
            self._drop(next(iter(self.programs)))
        while sum(programs.num_bytes for programs in self.programs.values()) > KEPT_BYTES:
            self._drop(max(self.programs, key=lambda kind: self.programs[kind].num_bytes))

    def _drop(self, kind: ScoreKind) -> None:
        if programs := self.programs.pop(kind, None):
            programs.free()

    def free_spare(self) -> None:
        """The device needs memory: all but those in use go."""
        for kind in list(self.programs):
            if kind != self._in_use:
                self._drop(kind)

    def leave(self, user: object, *, keep: bool) -> None:
        """A user is done; with the last one the programs go too, unless they are to be kept for one to come."""
        self.users.discard(user)
        if not keep and not self.users:
            self.close()

    def close(self) -> None:
        """Free everything; a later use records anew."""
        self._in_use = None
        self.free_spare()
