#!/usr/bin/env python3
"""CPU time of decoding 1, 2, 4 and 8 rows at once: python -m benchmarks.rows MODEL.gguf [-r N] [--json FILE]

A step runs so many tokens and makes all of them part of the cache, as verification of drafts does when all are right;
the states take them in on the next step's way. The numbers of rows take turns, so that other work on the machine meets
all alike. Each is run once before, not counted: that compiles.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from vkprefill.benchmark.record import Figure, Record, about, markdown_table
from vkprefill.benchmark.speed import random_tokens, timed
from vkprefill.engine.kept_rows import FEW_ROWS
from vkprefill.engine.model import Model, load
from vkprefill.engine.step_input import Best

BEST = Best(1)


def measure(model: Model, depth: int, steps: int, repetitions: int) -> dict[int, list[float]]:
    """CPU-seconds of a step of each of FEW_ROWS, repetition by repetition, over `steps` steps after `depth` tokens."""
    cache, runner = model.new_cache(), model.runner
    tokens = random_tokens(max(depth, max(FEW_ROWS)), model.config.vocab_size)
    if depth:
        model.extend(tokens[:depth], cache)
    start, found = cache.snapshot(), {rows: [] for rows in FEW_ROWS}

    def run(rows: int) -> None:
        for _ in range(steps):
            runner.run_rows(tokens[:rows], cache, lambda: None, best=BEST)
            runner.accept(cache, rows)

    for repetition in range(repetitions + 1):
        for rows in FEW_ROWS:
            cache.restore(start)
            times = timed(lambda rows=rows: run(rows))
            if repetition:
                found[rows].append(times.cpu_s / steps)
    start.free()
    cache.close()
    return found


def table(found: dict[int, list[float]]) -> str:
    """v(R): relative to one row, from the medians."""
    figures = {rows: Figure("", "CPU-s", tuple(values)) for rows, values in found.items()}
    one = figures[1].median
    rows = [
        (
            f"{r}",
            f"{f.median:.3f}",
            f"{f.lowest:.3f} .. {f.highest:.3f}",
            f"{f.median / one:.2f}",
            f"{f.median / r:.3f}",
        )
        for r, f in figures.items()
    ]
    return markdown_table(("rows", "CPU-s a step", "range", "v", "CPU-s a token"), rows)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL.gguf")
    parser.add_argument("-d", "--depth", type=int, default=64, help="tokens in the cache before (default %(default)s)")
    parser.add_argument("-n", "--steps", type=int, default=2, help="in a repetition (default %(default)s)")
    parser.add_argument("-r", "--repetitions", type=int, default=5, help="(default %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the record")
    arguments = parser.parse_args(argv)
    with load(arguments.model, max_context=1024) as model:
        if model.device.info.type != "cpu":
            parser.error("the process's CPU time is what the device works on CPU devices only")
        found = measure(model, arguments.depth, arguments.steps, arguments.repetitions)
        info = model.device.info
    print(table(found))
    if arguments.json:
        command = shlex.join(["python", "-m", "benchmarks.rows", *(sys.argv[1:] if argv is None else argv)])
        figures = [Figure(f"step of {rows} rows", "CPU-s", tuple(values)) for rows, values in found.items()]
        Record(about(command, info), figures).write(arguments.json)


if __name__ == "__main__":
    main()
