"""Where the time of what a model did went: each kernel's time on the device, as a table and as a Chrome trace.

Unlike the times in kernels.py these are of the submissions that the product makes, by the device's own clock. The marks
between dispatches cost a little themselves: on a CPU device each waits until the dispatch before it has ended.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import BinaryIO

from vkprefill.benchmark.record import markdown_table, number
from vkprefill.engine.model import Model
from vkprefill.vulkan.probe import DeviceInfo
from vkprefill.vulkan.timing import Recording, Run

RUNS_THREAD, KERNELS_THREAD = 1, 2  # rows of the trace
PROCESS = 1


@contextmanager
def recorded(target: Model, draft: Model | None = None) -> Iterator[Recording]:
    """The runs of all programs of these models, which share a device, and of what records programs meanwhile. The
    draft's names begin with "draft ". Raises DeviceError where kernels cannot be timed on the device.
    """
    models = [target] if draft is None else [target, draft]
    try:
        with target.device.record_times() as recording:
            if draft is not None:
                draft.runner.forward.role = "draft "
            _record_again(models)
            yield recording
    finally:
        if draft is not None:
            draft.runner.forward.role = ""
        if not target.device.lost:
            _record_again(models)


def _record_again(models: Sequence[Model]) -> None:
    for model in models:
        model.runner.record(lambda stage, done, total: None)


def seconds_by_kernel(run: Run) -> Counter[str]:
    """Shader -> seconds on the device, of all its dispatches in the run."""
    seconds: Counter[str] = Counter()
    for span in run.spans:
        seconds[span.shader] += span.seconds
    return seconds


@dataclass(frozen=True)
class KernelSum:
    """All dispatches of a kernel in the runs of a program; seconds on the device."""

    kernel: str
    dispatches: int
    seconds: float


@dataclass(frozen=True)
class ProgramSum:
    """All runs of the programs of one name; seconds by the CPU's clock; kernels, the longest first."""

    program: str
    runs: int
    seconds: float
    kernels: list[KernelSum]


def sums(runs: Sequence[Run]) -> list[ProgramSum]:
    """In the order in which the programs first ran."""
    by_program: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_program[run.program].append(run)
    return [_sum(program, mine) for program, mine in by_program.items()]


def _sum(program: str, runs: Sequence[Run]) -> ProgramSum:
    seconds: Counter[str] = Counter()
    dispatches: Counter[str] = Counter()
    for run in runs:
        seconds.update(seconds_by_kernel(run))
        dispatches.update(d.shader for d in run.dispatches)
    kernels = [KernelSum(shader, dispatches[shader], value) for shader, value in seconds.most_common()]
    return ProgramSum(program, len(runs), sum(run.seconds for run in runs), kernels)


def profile_text(runs: Sequence[Run]) -> str:
    """For each program a heading and a table of its kernels."""
    return "\n\n".join(map(_profile_table, sums(runs)))


def _profile_table(of: ProgramSum) -> str:
    total = sum(k.seconds for k in of.kernels)
    rows = [
        (k.kernel, str(k.dispatches), number(k.seconds * 1e3), f"{k.seconds / (total or 1.0):.1%}") for k in of.kernels
    ]
    rows.append(("all", str(sum(k.dispatches for k in of.kernels)), number(total * 1e3), "100.0%"))
    heading = f"{of.program}: {of.runs} run{'s' * (of.runs > 1)} in {number(of.seconds * 1e3)} ms; on the device:"
    return f"{heading}\n\n{markdown_table(('kernel', 'dispatches', 'ms', 'share'), rows)}"


def write_trace(file: BinaryIO, runs: Iterable[Run], info: DeviceInfo) -> None:
    """JSON in the trace event format, which chrome://tracing and ui.perfetto.dev open: complete events, times in us
    from the first. A row of programs, and one of their kernels with label, grid and submission.
    """
    file.write(b'{"displayTimeUnit": "ms", "traceEvents": [\n')
    file.write(",\n".join(map(json.dumps, _names(info))).encode())
    for run in runs:
        for event in _events(run):
            file.write(b",\n" + json.dumps(event).encode())
    file.write(b"\n]}\n")


def _names(info: DeviceInfo) -> list[dict]:
    names = [("process_name", 0, f"{info.name}, {info.driver}")]
    names += [("thread_name", RUNS_THREAD, "programs"), ("thread_name", KERNELS_THREAD, "kernels")]
    return [
        {"ph": "M", "pid": PROCESS, "tid": thread, "name": kind, "args": {"name": name}} for kind, thread, name in names
    ]


def _events(run: Run) -> Iterator[dict]:
    spans = run.spans
    if spans:
        cpu_ms = {"ms by the CPU's clock": run.seconds * 1e3}
        yield _complete(run.program, RUNS_THREAD, spans[0].begin_ns, spans[-1].end_ns, cpu_ms)
    for span in spans:
        about = {"label": span.label, "grid": list(span.grid), "submission": span.submission}
        yield _complete(span.shader, KERNELS_THREAD, span.begin_ns, span.end_ns, about)


def _complete(name: str, thread: int, begin_ns: float, end_ns: float, about: dict) -> dict:
    times = {"ts": begin_ns / 1e3, "dur": (end_ns - begin_ns) / 1e3}
    return {"ph": "X", "name": name, "pid": PROCESS, "tid": thread, **times, "args": about}
