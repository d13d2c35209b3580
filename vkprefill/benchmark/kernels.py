"""Where the time of a forward pass goes: each dispatch timed alone, beside what the device does at best.

Each dispatch is a submission of its own, whose time is taken from fence to fence, less that of a dispatch with nothing
to do. What a GPU gains by running dispatches side by side is not in these times. On CPU devices "seconds" are process
CPU time, elsewhere the clock's. Where the device has timestamps there is the time on it beside that, in the submissions
that the product makes.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from vkprefill.benchmark.record import Figure, markdown_table, number
from vkprefill.benchmark.speed import random_tokens
from vkprefill.benchmark.timeline import recorded, seconds_by_kernel
from vkprefill.engine.model import Model
from vkprefill.engine.sizes import recurrent_state_size
from vkprefill.engine.step_input import Best
from vkprefill.gguf.file import open_gguf
from vkprefill.gguf.quants import packed_row_bytes
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.program import MAX_GRID, Program
from vkprefill.vulkan.timing import Run

FMA_WORKGROUPS, FMA_LOCAL_SIZE, FMA_COUNT = 1024, 64, 1024
FMA_PER_COUNT = 16 * 8  # multiply-adds of an invocation of multiply_add.comp
COPY_BYTES = 64 << 20
EMPTY_DISPATCHES = 100
CEILING_RUNS = 3
UNMEASURED = "not measurable"  # no longer than an empty dispatch


@dataclass(frozen=True)
class Ceilings:
    """The device's best per second: gflop of a multiply-add loop, gbytes read and written by a copy."""

    gflop: float
    gbytes: float


@dataclass(frozen=True)
class KernelTime:
    """All dispatches of a kernel in one phase.

    values: seconds of each repetition; gflop and gbytes (weights, keys and values, states): per second, None where not
    known; of_ceiling: share of the nearer of the two ceilings, and `bound` which one. No rates where dispatches took
    less than two empty ones each.
    """

    kernel: str
    dispatches: int
    values: tuple[float, ...]
    gflop: float | None
    gbytes: float | None
    of_ceiling: float | None
    bound: str
    on_device: tuple[float, ...] = ()

    @property
    def seconds(self) -> float:
        return statistics.median(self.values)


@dataclass(frozen=True)
class Phase:
    """One run of a program. whole, empty: seconds as the product submits it and of an empty dispatch, by repetition;
    runs: timed on the device.
    """

    name: str
    kernels: list[KernelTime]
    whole: tuple[float, ...]
    empty: tuple[float, ...]
    runs: tuple[Run, ...] = ()

    @property
    def sum_s(self) -> float:
        return sum(k.seconds for k in self.kernels)


@dataclass(frozen=True)
class Amount:
    """Work of a dispatch: floating point operations and bytes, 0 where not known."""

    flop: float = 0.0
    num_bytes: float = 0.0


class _Timed:
    """A program with a time for each of its submissions; stands in for it where a model runs a program."""

    def __init__(self, program: Program, clock: Callable[[], float]) -> None:
        self.program, self.clock = program, clock
        self.num_submissions = program.num_submissions
        self.seconds: list[float] = []

    def run(self, between: Callable[[], None] | None = None) -> None:
        self.seconds = []
        last = self.clock()

        def tick() -> None:
            nonlocal last
            now = self.clock()
            self.seconds.append(now - last)
            last = self.clock()

        self.program.run(tick)


def measure_ceilings(device: Device) -> Ceilings:
    """Measure what the device does at best. Takes 128 MiB on it for a moment."""
    clock = clock_of(device)
    buffers = [device.buffer(f"ceiling {i}", (COPY_BYTES // 4,), kind="benchmark") for i in range(2)]
    try:
        multiply_add, copy = ceiling_programs(device, *buffers)
        flop = 2.0 * FMA_WORKGROUPS * FMA_LOCAL_SIZE * FMA_COUNT * FMA_PER_COUNT
        return Ceilings(flop / _best(multiply_add, clock) / 1e9, 2.0 * COPY_BYTES / _best(copy, clock) / 1e9)
    finally:
        for buffer in buffers:
            buffer.free()


def ceiling_programs(device: Device, source: Buffer, target: Buffer) -> tuple[Program, Program]:
    """(multiply-add loop, copy) on two buffers of COPY_BYTES."""
    multiply_add, copy = device.program("multiply_add"), device.program("copy_wide")
    multiply_add.dispatch(
        "multiply_add",
        [target],
        (FMA_WORKGROUPS, 1, 1),
        constants={"LOCAL_SIZE": FMA_LOCAL_SIZE},
        push={"count": FMA_COUNT, "factor": 0.999, "addend": 0.5},
    )
    words = COPY_BYTES // 16
    copy.dispatch(
        "copy_wide",
        [source, target],
        (min(MAX_GRID, words // FMA_LOCAL_SIZE), 1, 1),
        constants={"LOCAL_SIZE": FMA_LOCAL_SIZE},
        push={"count": words},
    )
    return multiply_add, copy


def measure_kernels(model: Model, depth: int, repetitions: int, ceilings: Ceilings) -> list[Phase]:
    """One chunk of prefill and one step of decode, both after `depth` tokens."""
    run, clock = model.runner, clock_of(model.device)
    rows = model.runner.sizes.rows
    chunk = _Timed(_one_by_one(model.device, lambda: run.forward.record_trunk("prefill", rows)), clock)
    step = _Timed(_one_by_one(model.device, lambda: run.forward.record_rows("decode", 1)), clock)
    tokens = random_tokens(max(depth, model.prefill_chunk), model.config.vocab_size)
    amounts = _Amounts(model)
    empty = _Timed(_one_by_one(model.device, lambda: _empty_program(model.device, run.scratch.x)), clock)
    empty.run()
    cache = model.new_cache()
    try:
        if depth:
            model.extend(tokens[:depth], cache)
        start = cache.snapshot()
        counts: list[int] = []  # of each run: less than a chunk where the past is long

        def count_tokens(first: int, count: int) -> _Timed:
            counts.append(count)
            return chunk

        room = model.max_context - depth - 1  # one is for the step of decode
        run.prefill(tokens[: min(model.prefill_chunk, room)], cache, program_for=count_tokens)  # compiles too
        run.decode(tokens[0], cache, lambda: None, best=Best(1), program=lambda: step)

        def prefill(program: _Timed | None) -> float:
            cache.restore(start)
            began = clock()
            run.prefill(tokens[: counts[0]], cache, program_for=program and (lambda *_: program))
            return clock() - began

        def decode(program: _Timed | None) -> float:
            cache.restore(start)
            began = clock()
            run.decode(tokens[0], cache, lambda: None, best=Best(1), program=program and (lambda: program))
            return clock() - began

        phases = []
        for kind, timer, run_phase, count in (("prefill", chunk, prefill, counts[0]), ("decode", step, decode, 1)):
            phase = _phase(
                f"{kind} of {count} after {depth} tokens",
                timer,
                run_phase,
                empty,
                repetitions,
                ceilings,
                lambda label, dispatch, rows, count=count: amounts.of(label, dispatch, rows, count, depth),
            )
            if not model.device.abilities.untimed:
                with recorded(model) as recording:
                    for _ in range(repetitions):
                        run_phase(None)
                phase = with_device_times(phase, [timed for timed in recording.runs if timed.program.endswith(kind)])
            phases.append(phase)
        return phases
    finally:
        cache.close()


def with_device_times(phase: Phase, runs: Sequence[Run]) -> Phase:
    """The phase with what its runs took on the device."""
    by_run = [seconds_by_kernel(run) for run in runs]
    kernels = [replace(k, on_device=tuple(seconds[k.kernel] for seconds in by_run)) for k in phase.kernels]
    return replace(phase, kernels=kernels, runs=tuple(runs))


def _phase(
    name: str,
    timer: _Timed,
    run: Callable[[_Timed | None], float],
    empty: _Timed,
    repetitions: int,
    ceilings: Ceilings,
    amount_of: Callable[[str, tuple[str, float], int], Amount],
) -> Phase:
    samples, wholes, empties = [], [], []
    for _ in range(repetitions):
        empty.run()  # each time anew: what a submission costs depends on how busy the machine is
        empties.append(statistics.median(empty.seconds))
        run(timer)
        samples.append([max(0.0, value - empties[-1]) for value in timer.seconds])
        wholes.append(run(None))
    program = timer.program
    amounts = [
        amount_of(label, dispatch, program.num_rows)
        for label, dispatch in zip(program.labels, program.dispatches, strict=True)
    ]
    shaders = [shader for shader, _ in program.dispatches]
    return Phase(
        name, group(shaders, samples, amounts, ceilings, statistics.median(empties)), tuple(wholes), tuple(empties)
    )


def group(
    shaders: Sequence[str],
    seconds: Sequence[Sequence[float]],
    amounts: Sequence[Amount],
    ceilings: Ceilings,
    empty_s: float,
) -> list[KernelTime]:
    """The dispatches of each shader together, those that take longest first.

    seconds[repetition][dispatch]: less that of an empty one, empty_s, already.
    """
    places = defaultdict(list)
    for place, shader in enumerate(shaders):
        places[shader].append(place)
    kernels = []
    for shader, mine in places.items():
        values = tuple(sum(sample[i] for i in mine) for sample in seconds)
        time_s = statistics.median(values)
        gflop = gbytes = 0.0
        if time_s > empty_s * len(mine):
            gflop, gbytes = (
                sum(getattr(amounts[i], what) for i in mine) / time_s / 1e9 for what in ("flop", "num_bytes")
            )
        share, bound = max((gflop / ceilings.gflop, "multiply-add"), (gbytes / ceilings.gbytes, "copy"))
        kernels.append(
            KernelTime(shader, len(mine), values, gflop or None, gbytes or None, share or None, bound if share else "")
        )
    return sorted(kernels, key=lambda k: -k.seconds)


class _Amounts:
    """What is known of the work of a dispatch, from its label, its shader and the model's shape."""

    def __init__(self, model: Model) -> None:
        self._model, self._file = model, open_gguf(model.path)

    def of(self, label: str, dispatch: tuple[str, float], num_rows: int, num_tokens: int, depth: int) -> Amount:
        """num_rows: that the program was recorded for, num_tokens: in use."""
        (shader, work), c = dispatch, self._model.config
        flop = work * num_tokens / num_rows
        if shader.startswith(("matmul", "matvec")):
            info = self._file.info(label.rsplit(" ", 1)[1])
            columns = info.shape[-1]
            weights = work / (2 * num_rows)
            return Amount(flop, weights * packed_row_bytes(info.type, columns) / columns)
        if shader.startswith(("attention_f", "attention_shuffle_")):
            keys, item = depth + num_tokens, 2 if self._model.kv_type == "f16" else 4
            return Amount(4.0 * c.q_dim * num_tokens * (depth + (num_tokens + 1) / 2), 2.0 * c.kv_dim * keys * item)
        if shader.startswith(("delta_rule", "delta_rows")):
            return Amount(flop, 8.0 * recurrent_state_size(c))
        return Amount()


def clock_of(device: Device) -> Callable[[], float]:
    return time.process_time if device.info.type == "cpu" else time.perf_counter


def second_of(device: Device) -> str:
    """The unit of clock_of."""
    return "CPU-s" if device.info.type == "cpu" else "s"


def _one_by_one(device: Device, record: Callable[[], Program]) -> Program:
    device.one_by_one = True
    try:
        return record()
    finally:
        device.one_by_one = False


def _empty_program(device: Device, target: Buffer) -> Program:
    program = device.program("empty")
    for _ in range(EMPTY_DISPATCHES):
        program.dispatch(
            "fill", [target], (1, 1, 1), constants={"LOCAL_SIZE": FMA_LOCAL_SIZE}, push={"value": 0, "count": 1}
        )
    return program


def _best(program: Program, clock: Callable[[], float]) -> float:
    timer, times = _Timed(program, clock), []
    for _ in range(CEILING_RUNS + 1):
        timer.run()
        times.append(sum(timer.seconds))
    return min(times[1:])


def kernel_figures(phases: Sequence[Phase], ceilings: Ceilings, second: str) -> list[Figure]:
    figures = [
        Figure("ceiling: multiply-add loop", f"GFLOP/{second}", (ceilings.gflop,)),
        Figure("ceiling: copy, read and written", f"GB/{second}", (ceilings.gbytes,)),
    ]
    for phase in phases:
        figures.append(Figure(phase.name, second, phase.whole))
        figures.append(Figure(f"{phase.name}: empty dispatch", second, phase.empty))
        figures += [Figure(f"{phase.name}: {k.kernel}", second, k.values) for k in phase.kernels]
        timed = [k for k in phase.kernels if k.on_device]
        figures += [Figure(f"{phase.name}: {k.kernel}, on the device", "s", k.on_device) for k in timed]
    return figures


def ceilings_text(ceilings: Ceilings, second: str, untimed: str) -> str:
    """untimed: why kernels cannot be timed on the device, or empty."""
    on_device = (
        f"nothing: kernels cannot be timed on the device, {untimed}"
        if untimed
        else "the time by the device's own clock, in the submissions that the product makes"
    )
    return (
        f"At best, per {second}: {number(ceilings.gflop)} GFLOP by a loop of multiply-adds, {number(ceilings.gbytes)} "
        "GB read and written by a copy. Each dispatch below is a submission of its own, less the time of an empty one; "
        f"the last column has {on_device}."
    )


def phase_table(phase: Phase, second: str) -> str:
    """A heading and a table; shares of the sum, and of the nearer ceiling."""
    unit = "ms" if second == "s" else "CPU-ms"
    total = phase.sum_s or 1.0
    rows = [
        (
            k.kernel,
            str(k.dispatches),
            number(k.seconds * 1e3) if k.seconds else UNMEASURED,
            f"{k.seconds / total:.1%}" if k.seconds else "-",
            _shown(k.gflop),
            _shown(k.gbytes),
            "-" if k.of_ceiling is None else f"{k.of_ceiling:.0%} {k.bound}",
            number(statistics.median(k.on_device) * 1e3) if k.on_device else "-",
        )
        for k in phase.kernels
    ]
    on_device = [sum(seconds_by_kernel(run).values()) for run in phase.runs]
    dispatches = str(sum(k.dispatches for k in phase.kernels))
    device_ms = number(statistics.median(on_device) * 1e3) if on_device else "-"
    rows.append(("all", dispatches, number(phase.sum_s * 1e3), "100.0%", "-", "-", "-", device_ms))
    columns = ("kernel", "dispatches", unit, "share", f"GFLOP/{second}", f"GB/{second}", "of ceiling", "ms on device")
    whole = number(statistics.median(phase.whole) * 1e3)
    empty = f"{statistics.median(phase.empty) * 1e6:,.0f} {unit.replace('ms', 'us')}"
    heading = f"{phase.name}: {whole} {unit} as the product runs it; an empty dispatch takes {empty}."
    return f"{heading}\n\n{markdown_table(columns, rows)}"


def _shown(value: float | None) -> str:
    return "-" if value is None else number(value)
