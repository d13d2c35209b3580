"""A sequence of dispatches with the barriers between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from vkprefill.errors import DeviceError
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.shaders import load_shader, pack_words
from vkprefill.vulkan.timing import Marks

if TYPE_CHECKING:
    from vkprefill.vulkan.device import Device


MAX_GRID = 65535
COPY_WORKGROUPS = 1024  # whatever the size, so that copies share a pipeline; the invocations stride


class Program:
    """Dispatches, recorded once and run any number of times.

    A dispatch that depends on an earlier one gets a barrier before it (see ARCHITECTURE.md); a submission ends when its
    work passes the profile's bound. What a program binds is not dropped while it lives; once some of it was freed, the
    program refuses to run.
    """

    def __init__(self, device: Device, name: str, step: Buffer | None, num_rows: int) -> None:
        self.device = device
        self.name = name
        self.step = step
        self.num_rows = num_rows
        self.prefix = ""  # of the labels: the layer being recorded
        self.watch: object | None = None  # who looks at the points that are announced meanwhile: engine/points.py
        self.labels: list[str] = []
        self.dispatches: list[tuple[str, float]] = []  # (shader, floating point operations or 0) of each
        self.shaders: set[str] = set()
        self._sequences: list = []
        self._bound: dict[int, Buffer] = {}  # a buffer of each memory: held, so that dropping one elsewhere is no harm
        self._written: set[int] = set()
        self._read: set[int] = set()
        self._work = 0.0
        self._one_by_one = device.one_by_one
        self._calls: dict[int, list[Callable[[], None]]] = {}  # by the number of submissions before
        self._marks = Marks(device.recording) if device.recording else None

    def dispatch(
        self,
        shader_name: str,
        buffers: Sequence[Buffer],
        workgroups: tuple[int, int, int],
        *,
        constants: dict[str, int | float] | None = None,
        push: dict[str, int] | None = None,
        work: float = 0.0,
        label: str = "",
    ) -> None:
        """Append a dispatch. buffers in binding order; constants and push by name; work in flops."""
        shader = load_shader(shader_name)
        label = f"{self.name}.{self.prefix}{label or shader_name}"
        if len(buffers) != len(shader.bindings):
            raise TypeError(f"{label}: {len(buffers)} buffers given, {len(shader.bindings)} bindings declared")
        self._check(label, buffers)
        if not all(1 <= n <= MAX_GRID for n in workgroups):
            raise TypeError(f"{label}: grid {workgroups} is outside 1..{MAX_GRID}")
        spec = pack_words(label, "constants", shader.constants, constants or {})
        words = pack_words(label, "push words", shader.push, push or {})
        operation = self.device.operation(shader, buffers, workgroups, spec, words)

        self._bound |= {b.serial: b for b in buffers}
        reads = {b.serial for b, binding in zip(buffers, shader.bindings, strict=True) if binding.read}
        writes = {b.serial for b, binding in zip(buffers, shader.bindings, strict=True) if binding.write}
        depends = (reads | writes) & self._written or writes & self._read
        if (
            not self._sequences
            or self._one_by_one
            or len(self._sequences) in self._calls
            or self._work + work > self.device.profile.submission_flop
            and self._work
            or (depends and not self.device.has_barrier)
        ):
            self._begin_submission()
        elif depends:
            self._sequences[-1].record(self.device._barrier())
            self._written.clear()
            self._read.clear()
        self._sequences[-1].record(operation)
        if self._marks:
            self._marks.end_dispatch(self._sequences[-1], label, shader_name, workgroups)
        self._written |= writes
        self._read |= reads
        self._work += work
        self.labels.append(label)
        self.dispatches.append((shader_name, work))
        self.shaders.add(shader_name)

    def _begin_submission(self) -> None:
        """The fence at the end of a submission makes all its writes available to the next."""
        self._end_submission()
        self._sequences.append(self.device._manager.sequence())
        if self._marks:
            self._marks.begin_submission(self._sequences[-1])
        self._written.clear()
        self._read.clear()
        self._work = 0.0

    def _end_submission(self) -> None:
        """Make what was written visible to the CPU too. Without the barrier operation that is left to the driver: it
        flushes what was written to coherent memory before it signals the fence.
        """
        if self._sequences and self._written and self.device.has_barrier:
            self._sequences[-1].record(self.device._barrier())
            self._written.clear()

    def call(self, function: Callable[[], None]) -> None:
        """Append work of the host's: the program is cut here, and function() runs between two submissions."""
        self._calls.setdefault(len(self._sequences), []).append(function)

    def copy(self, source: Buffer, target: Buffer, source_offset: int, target_offset: int, count: int) -> None:
        """Append a copy of `count` 4-byte items, offsets in items."""
        self.dispatch(
            "copy",
            [source, target],
            (COPY_WORKGROUPS, 1, 1),
            constants={"LOCAL_SIZE": 64},
            push={"from_offset": source_offset, "to_offset": target_offset, "count": count},
            label=f"copy {source.label} to {target.label}",
        )

    def fill(self, target: Buffer, value: int = 0) -> None:
        """Append a fill of the whole buffer with one 32-bit word."""
        count = target.num_bytes // 4
        self.dispatch(
            "fill",
            [target],
            (COPY_WORKGROUPS, 1, 1),
            constants={"LOCAL_SIZE": 64},
            push={"value": value, "count": count},
            label=f"fill {target.label}",
        )

    def _check(self, label: str, buffers: Iterable[Buffer]) -> None:
        """Raise DeviceError where kp would crash."""
        self.device.check_open()
        if freed := [b.label for b in buffers if b.owner.freed]:
            raise DeviceError(f"{label}: {', '.join(freed)} was freed, with the model or cache it belonged to")

    @property
    def num_submissions(self) -> int:
        return len(self._sequences)

    def run(self, between: Callable[[], None] | None = None) -> None:
        """Run all submissions in order; `between` is called after each. Raises DeviceError when the device is lost, or
        something that a dispatch binds was freed.
        """
        self._check(self.name, self._bound.values())
        self._end_submission()
        if self.device.lost:
            raise DeviceError(f"{self.device.info.name}: the device was lost earlier; load the model again")
        with self._marks.run(self.name) if self._marks else nullcontext():
            for number, sequence in enumerate(self._sequences):
                if self._calls:
                    self._call(number)
                self._submit(sequence)
                if between:
                    between()
            if self._calls:
                self._call(len(self._sequences))

    def _call(self, number: int) -> None:
        """The host's work after so many submissions."""
        for function in self._calls.get(number, ()):
            function()

    def _submit(self, sequence: object) -> None:
        try:
            sequence.eval()
        except RuntimeError as error:
            self.device.lost = True
            raise DeviceError(f"{self.name}: {self.device.info.name}: the device was lost or failed: {error}") from None
