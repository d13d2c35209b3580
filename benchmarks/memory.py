"""What a model's memory really is, beside its bill: python benchmarks/memory.py MODEL.gguf ... [--json FILE]

For each model and context, in a process of its own: load, touch every byte that is accounted (fill the caches, run one
prefill and one step of decode) and read by how much the process's anonymous memory grew since before the device was
opened. On a CPU device that holds the device's memory. What the driver needs for itself is measured in another process,
which has no model: it opens the device and records and runs the same dispatches, that is the same pipelines, over
buffers of a few KiB and with zeros for sizes, so that they are compiled and have nothing to do. Both start with an
empty shader cache. What is left of the growth without the driver's is held against the bill of `vkprefill inspect`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np

import vkprefill
from vkprefill.benchmark.record import Figure, Record, about, markdown_table
from vkprefill.benchmark.start import CACHE_VARIABLES, resident_bytes
from vkprefill.engine.step_input import Best
from vkprefill.vulkan.buffer import Buffer
from vkprefill.vulkan.device import Device
from vkprefill.vulkan.probe import choose
from vkprefill.vulkan.program import Program
from vkprefill.vulkan.shaders import load_shader

MIB = 2**20
SMALL_WORDS = 4096  # of a buffer that stands for one of any size


@dataclass(frozen=True)
class Dispatch:
    """One recorded dispatch; buffers: what tells their memories apart."""

    shader: str
    buffers: tuple[int, ...]
    workgroups: tuple[int, int, int]
    constants: dict[str, int | float]
    work: float


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.gguf")
    parser.add_argument("--contexts", type=int, nargs="+", default=[2048, 8192, 32768], metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record")
    arguments = parser.parse_args(argv)
    if choose(None).type != "cpu":
        parser.error("the device's memory is the process's on CPU devices only")
    figures, rows = [], []
    for path in arguments.models:
        for context in arguments.contexts:
            print(f"{path.stem}, {context} tokens", file=sys.stderr)
            bill, accounted, grown, programs = in_new_process(model_memory, path, context)
            driver = in_new_process(driver_memory, programs)
            sizes = {"bill": bill, "accounted": accounted, "process": grown, "driver": driver}
            figures += [Figure(f"{path.stem} {context}: {name}", "MiB", (s / MIB,)) for name, s in sizes.items()]
            difference = (grown - driver) / bill - 1
            rows.append((path.stem, f"{context:,}", *(f"{s / MIB:,.1f}" for s in sizes.values()), f"{difference:+.1%}"))
    print(markdown_table(("model", "context", *(f"{name}, MiB" for name in sizes), "process - driver - bill"), rows))
    if arguments.json:
        command = shlex.join(["python", "benchmarks/memory.py", *(sys.argv[1:] if argv is None else argv)])
        Record(about(command, choose(None)), figures).write(arguments.json)


def in_new_process(measure: Callable, *arguments: object) -> object:
    with tempfile.TemporaryDirectory(prefix="vkprefill-shaders-") as folder:
        variables = dict.fromkeys(CACHE_VARIABLES, folder)
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, spawn, initializer=_set_environment, initargs=(variables,)) as process:
            return process.submit(measure, *arguments).result()


def _set_environment(variables: dict[str, str]) -> None:
    os.environ.update(variables)


def model_memory(path: Path, context: int) -> tuple[int, int, int, list[list[Dispatch]]]:
    """Bytes of the bill, accounted and grown by, all touched; the dispatches of each program that the model keeps."""
    before = 0

    def note_opening(stage: str, done: int, total: int) -> None:
        nonlocal before
        if stage == "opening the device":
            before = resident_bytes()

    with noted_dispatches() as noted, vkprefill.load(path, max_context=context, progress=note_opening) as model:
        model.device.clear(model.runner.pool.buffers())
        cache = model.new_cache()
        model.prefill_candidates([1], cache, Best(1))
        model.decode_candidates(1, cache, Best(1))
        cache.close()
        grown = resident_bytes() - before
        return model.memory.total, model.device.allocated.total(), grown, list(noted.values())


def driver_memory(programs: list[list[Dispatch]]) -> int:
    """Bytes that the process grows by with the same programs over small buffers, less those buffers."""
    before = resident_bytes()
    device = Device.open()
    memories = {memory for dispatches in programs for dispatch in dispatches for memory in dispatch.buffers}
    buffers = {memory: device.buffer("small", (SMALL_WORDS,), np.uint32, memory="host") for memory in memories}
    for buffer in buffers.values():
        buffer.view()[:] = 0
    recorded = [device.program("driver") for _ in programs]
    for program, dispatches in zip(recorded, programs, strict=True):
        for dispatch in dispatches:
            program.dispatch(
                dispatch.shader,
                [buffers[memory] for memory in dispatch.buffers],
                dispatch.workgroups,
                constants=dispatch.constants,
                push={name: 0 for name, _ in load_shader(dispatch.shader).push},
                work=dispatch.work,
            )
    for program in recorded:
        program.run()
    grown = resident_bytes() - before - device.allocated.total()
    device.close()
    return grown


@contextmanager
def noted_dispatches() -> Iterator[Mapping[Program, list[Dispatch]]]:
    """The dispatches of every program recorded inside, as long as it lives."""
    noted: WeakKeyDictionary[Program, list[Dispatch]] = WeakKeyDictionary()
    original = Program.dispatch

    def dispatch(
        program: Program,
        shader: str,
        buffers: Sequence[Buffer],
        workgroups: tuple[int, int, int],
        *,
        constants: dict[str, int | float] | None = None,
        work: float = 0.0,
        **others: object,
    ) -> None:
        memories = tuple(buffer.serial for buffer in buffers)
        noted.setdefault(program, []).append(Dispatch(shader, memories, workgroups, constants or {}, work))
        original(program, shader, buffers, workgroups, constants=constants, work=work, **others)

    Program.dispatch = dispatch
    try:
        yield noted
    finally:
        Program.dispatch = original


if __name__ == "__main__":
    main()
