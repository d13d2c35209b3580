#!/usr/bin/env python3
"""First token of a model that scores prompts itself, beside a draft's scoring and the dense prefill, in one run.

python -m benchmarks.self_scoring [-m TARGET.gguf [-md DRAFT.gguf]] [--lengths 1024,2048] [--keep 0.2] [-r 3]

The three take turns, each time with a new prompt of random tokens. One turn is run before, not counted: that compiles.
`formula` is the dense time x ((s + 1) / L + k (1 - (s + 1) / L)), k what was kept and s the layer that scored: what
it leaves out are the rows and the choice, the head, and that attention grows with the past. `rows` is the memory
between the layers, as allocated and as the bill has it. Times are seconds, on a CPU those of all
its threads; `read` and `late`, the two parts of `self`, are on the clock.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import vkprefill
from vkprefill.benchmark.record import Figure, Record, about
from vkprefill.benchmark.speed import has_cpu_time, random_tokens, seconds, timed
from vkprefill.engine.model import Model
from vkprefill.engine.row_store import store_bytes
from vkprefill.specprefill.pipeline import SpecPrefill
from vkprefill.specprefill.settings import SpecPrefillConfig

DATA = Path(vkprefill.__file__).parent / "data"
COLUMNS = (
    "tokens",
    "kept",
    "dense s",
    "self s",
    "read s",
    "late s",
    "formula s",
    "self / formula",
    "draft s",
    "rows MiB",
)


class Peak:
    """The most memory that the rows between the layers took; a callback of prefill's progress."""

    def __init__(self, model: Model) -> None:
        self._model, self.num_bytes = model, 0

    def __call__(self, done: int, total: int) -> None:
        self.num_bytes = max(self.num_bytes, self._model.device.allocated.get("prompt_rows", 0))


def measure(
    target: Model, draft: Model | None, length: int, keep: float, repetitions: int
) -> tuple[dict[str, object], list[Figure]]:
    """One row of the table, of medians, and the figures of the three ways."""
    config = {"select_mode": "chunk", "keep_ratio": keep, "max_keep": 0, "break_even": False, "tool_guard": False}
    pairs = {"self": SpecPrefill(target, None, SpecPrefillConfig(scorer="self", **config))}
    if draft is not None:
        pairs["draft"] = SpecPrefill(target, draft, SpecPrefillConfig(**config))
    found, cpu, peak = {name: [] for name in ("dense", *pairs)}, has_cpu_time(target), Peak(target)
    reports = []
    for repetition in range(repetitions + 1):
        tokens = random_tokens(length, target.config.vocab_size, repetition)
        for name, all_times in found.items():
            results = []
            if name == "dense":
                times = timed(lambda tokens=tokens: target.prefill(tokens))
            else:
                pair = pairs[name]
                times = timed(lambda pair=pair, t=tokens, r=results: r.append(pair.prefill(t, progress=peak)))
                results[0].cache.close()
            if repetition:
                all_times.append(times)
                reports += [result.report for result in results if name == "self"]
    layer, layers = pairs["self"].split_of(pairs["self"].config), target.config.num_hidden_layers
    for pair in pairs.values():
        pair.close()
    figures = [f for how, times in found.items() for f in seconds(f"first token of {length}, {how}", times, cpu)]
    took = {name: median(t.cpu_s if cpu else t.wall_s for t in times) for name, times in found.items()}
    early, kept, dense = (layer + 1) / layers, median(r.kept_n for r in reports) / length, took["dense"]
    row = {
        "tokens": length,
        "layer": layer,
        "kept": kept,
        "dense_s": dense,
        "self_s": took["self"],
        "read_wall_s": median(r.score_ms for r in reports) / 1e3,
        "late_wall_s": median(r.sparse_prefill_ms for r in reports) / 1e3,
        "formula_s": dense * (early + kept * (1 - early)),
        "draft_s": took.get("draft"),
        "rows_bytes": peak.num_bytes,
        "rows_bill": store_bytes(length, target.config.hidden_size),
    }
    return row, figures


def line(row: dict[str, object]) -> str:
    draft = "" if row["draft_s"] is None else f"{row['draft_s']:.2f}"
    ratio = row["self_s"] / row["formula_s"]
    return (
        f"| {row['tokens']} | {row['kept']:.0%} | {row['dense_s']:.2f} | {row['self_s']:.2f} "
        f"| {row['read_wall_s']:.2f} | {row['late_wall_s']:.2f} | {row['formula_s']:.2f} | {ratio:.2f} | {draft} "
        f"| {row['rows_bytes'] / 2**20:.2f} of {row['rows_bill'] / 2**20:.2f} MiB |"
    )


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-m", "--model", help="(default: the built-in pair)")
    parser.add_argument("-md", "--model-draft")
    parser.add_argument("--lengths", default="1024,2048,4096,8192")
    parser.add_argument("--keep", type=float, default=0.2)
    parser.add_argument("-r", "--repetitions", type=int, default=3)
    parser.add_argument("--json", metavar="FILE", help="write the record")
    args = parser.parse_args(argv)
    lengths = [int(n) for n in args.lengths.split(",")]
    context = max(lengths) + 64
    draft_path = args.model_draft or (DATA / "draft.gguf" if args.model is None else None)
    with ExitStack() as stack:
        target = stack.enter_context(vkprefill.load(args.model or DATA / "target.gguf", max_context=context))
        draft = draft_path and stack.enter_context(vkprefill.load(draft_path, target.device, max_context=context))
        print(f"{target.config.name} on {target.device.info.name}, {target.device.info.driver}")
        print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
        rows, figures, info = [], [], target.device.info
        for length in lengths:
            row, measured = measure(target, draft, length, args.keep, args.repetitions)
            rows.append(row)
            figures += measured
            print(line(row), flush=True)
    if args.json:
        command = shlex.join(["python", "-m", "benchmarks.self_scoring", *(sys.argv[1:] if argv is None else argv)])
        Record(about(command, info), figures, {"rows": rows}).write(args.json)


if __name__ == "__main__":
    main()
