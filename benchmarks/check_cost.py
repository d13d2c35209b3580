#!/usr/bin/env python3
"""What a checked answer costs beside the dense one: python -m benchmarks.check_cost [--lengths 1024,2048] [-r 3]

Whole answers of the built-in pair to questions about two facts, made as `vkprefill eval` makes them: dense, sparse, and
sparse with a check, which ends when the dense model has confirmed or revised it. The three take turns with each
prompt, and each prompt is new to all of them; one is run before, not counted: that compiles. Medians of seconds, on a
CPU those of all its threads; the record has both.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import vkprefill
from vkprefill.benchmark.record import Record, about, markdown_table
from vkprefill.benchmark.speed import Times, has_cpu_time, seconds, timed
from vkprefill.evaluation.tasks import make_tasks
from vkprefill.generation.generate import stream_generate
from vkprefill.generation.prompt import encode_prompt
from vkprefill.specprefill.pipeline import SpecPrefill
from vkprefill.specprefill.settings import SpecPrefillConfig

DATA = Path(vkprefill.__file__).parent / "data"
GREEDY = vkprefill.SamplingConfig(temperature=0)
WAYS = ("dense", "sparse", "checked")
COLUMNS = ("tokens", *(f"{way}, {what} s" for what in ("first", "whole") for way in WAYS), "checked / dense", "checks")
Found = dict[tuple[str, str], list[Times]]  # (way, "first" or "whole") -> one for each prompt


def answer(target: vkprefill.Model, ids: Sequence[int], pair: SpecPrefill | None) -> tuple[Times, Times, str]:
    """Times to the first piece of the answer and to its end, and what the check said of it."""
    parts, last = stream_generate(target, ids, draft=pair, max_tokens=32, sampling=GREEDY, whole=True), []
    first = timed(lambda: last.append(next(parts)))
    rest = timed(lambda: last.extend(parts))
    report = last[-1].specprefill
    check = report.check if report is not None else None
    return first, Times(first.wall_s + rest.wall_s, first.cpu_s + rest.cpu_s), check["status"] if check else ""


def measure(
    target: vkprefill.Model, pairs: dict[str, SpecPrefill | None], length: int, repetitions: int
) -> tuple[Found, Counter]:
    """Times of prompts of about `length` tokens, and how often the check said what."""
    tasks = make_tasks(lambda prompt: encode_prompt(target, prompt), length, ["several"], repetitions + 1, seed=7)
    found, checks = {(way, what): [] for way in WAYS for what in ("first", "whole")}, Counter()
    for i, task in enumerate(tasks):
        for way, pair in pairs.items():
            first, whole, check = answer(target, task.token_ids, pair)
            if i:
                found[way, "first"].append(first)
                found[way, "whole"].append(whole)
                checks.update([check] if way == "checked" else [])
    return found, checks


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="1024,2048,4096")
    parser.add_argument("--keep", type=float, default=0.2)
    parser.add_argument("-r", "--repetitions", type=int, default=3, help="prompts of each length")
    parser.add_argument("--json", metavar="FILE", help="write the record")
    args = parser.parse_args(argv)
    lengths, rows, figures = [int(n) for n in args.lengths.split(",")], [], []
    context = 3 * (max(lengths) + 64)  # of the prompt, the part that is kept of it, and both answers
    config = {"select_mode": "chunk", "keep_ratio": args.keep, "break_even": False, "tool_guard": False}
    with ExitStack() as stack:
        target = stack.enter_context(vkprefill.load(DATA / "target.gguf", max_context=context))
        draft = stack.enter_context(vkprefill.load(DATA / "draft.gguf", target.device, max_context=context))
        info, cpu, pairs = target.device.info, has_cpu_time(target), {"dense": None}
        for way, check in (("sparse", "off"), ("checked", "on")):
            pairs[way] = SpecPrefill(target, draft, SpecPrefillConfig(check=check, **config))
            stack.callback(pairs[way].close)
        for length in lengths:
            found, checks = measure(target, pairs, length, args.repetitions)
            named = {
                (way, what): seconds(
                    f"{what} {'answer' if what == 'whole' else 'token'} of {length}, {way}", times, cpu
                )
                for (way, what), times in found.items()
            }
            figures += [f for some in named.values() for f in some]
            took = {key: some[-1].median for key, some in named.items()}
            rows.append(row(length, took, checks))
    print(markdown_table(COLUMNS, rows))
    if args.json:
        command = shlex.join(["python", "-m", "benchmarks.check_cost", *(sys.argv[1:] if argv is None else argv)])
        Record(about(command, info), figures).write(args.json)


def row(length: int, took: dict[tuple[str, str], float], checks: Counter) -> tuple[str, ...]:
    times = [f"{took[way, what]:.2f}" for what in ("first", "whole") for way in WAYS]
    ratio = took["checked", "whole"] / took["dense", "whole"]
    said = ", ".join(f"{count} {status}" for status, count in checks.items())
    return (f"{length:,}", *times, f"{ratio:.2f}", said)


if __name__ == "__main__":
    main()
