#!/usr/bin/env python3
"""Time to the first token, dense and speculative side by side in one run, and the cost of a further turn.

python -m benchmarks.first_token [-m TARGET.gguf -md DRAFT.gguf] [--lengths 1024,2048] [--keep 0.2] [-r 3]

The two take turns; one turn is run before, not counted: that compiles. The table has medians. `predicted` is what the
split predicts: the scorer's time with look-ahead, and the dense time of as many tokens as were kept; the rest of the
difference is attention over a shorter past and the selection. CPU seconds (all threads) are what is comparable on a
busy machine; the record has them on CPU devices.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import vkprefill
from vkprefill.benchmark.record import Figure, Record, about, markdown_table
from vkprefill.benchmark.speed import Times, has_cpu_time, random_tokens, seconds, timed
from vkprefill.generation.options import AnswerOptions, Hooks
from vkprefill.generation.sampling import SamplingConfig
from vkprefill.generation.steps import Timings
from vkprefill.generation.tokens import dense_plan, stream_tokens
from vkprefill.specprefill.plan import Plan

DATA = Path(vkprefill.__file__).parent / "data"
GREEDY = SamplingConfig(temperature=0, top_k=1, top_p=1, min_p=0, presence_penalty=0)
COLUMNS = ("tokens", "kept", "dense s", "speculative s", "scoring", "look-ahead", "prefill", "predicted s", "ratio")


def prompt_ids(model: vkprefill.Model, num_tokens: int) -> list[int]:
    """Random tokens: the cost does not depend on which."""
    return random_tokens(num_tokens, model.config.vocab_size, seed=num_tokens)


def first_token(model: vkprefill.Model, ids: list[int], plan: Plan) -> None:
    """Run what is planned of a prompt in a cache of its own, and sample a token."""
    cache, options = model.new_cache(), AnswerOptions(max_tokens=1, sampling=GREEDY)
    parts = stream_tokens(model, ids, cache, plan, options, Hooks(), Timings())
    try:
        next(parts)
    finally:
        parts.close()
        cache.close()


def compare(
    target: vkprefill.Model, draft: vkprefill.Model, num_tokens: int, keep: float, repetitions: int
) -> tuple[dict[str, object], list[Figure]]:
    """One row of the table, and the figures it is of."""
    config = vkprefill.SpecPrefillConfig(
        select_mode="chunk", keep_ratio=keep, max_keep=0, break_even=False, tool_guard=False
    )
    ids, times, reports = prompt_ids(target, num_tokens), {"dense": [], "speculative": [], "as many, dense": []}, []
    for repetition in range(repetitions + 1):
        plans: list[Plan] = []

        def speculative(plans: list[Plan] = plans) -> None:
            spec = vkprefill.SpecPrefill(target, draft, config)  # a new one, or it would remember the selection
            try:
                plans.append(spec.plan(ids))
                first_token(target, ids, plans[0])
            finally:
                spec.close()

        found = [timed(lambda: first_token(target, ids, dense_plan(num_tokens))), timed(speculative)]
        kept = plans[0].report.kept_n
        found.append(timed(lambda kept=kept: first_token(target, ids[:kept], dense_plan(kept))))
        if repetition:
            reports.append(plans[0].report)
            for name, measured in zip(times, found, strict=True):
                times[name].append(measured)
    parts = {
        "scoring": [r.score_ms for r in reports],
        "look-ahead": [r.lookahead_ms for r in reports],
        "sparse prefill": [r.sparse_prefill_ms for r in reports],
    }
    name, cpu = f"first token of {num_tokens}", has_cpu_time(target)
    figures = [f for how, measured in times.items() for f in seconds(f"{name}, {how}", measured, cpu)]
    figures += [Figure(f"{name}, {part}", "s", tuple(ms / 1e3 for ms in all_ms)) for part, all_ms in parts.items()]
    return row_of(figures, num_tokens, reports[0].kept_n), figures


def row_of(figures: list[Figure], num_tokens: int, kept: int) -> dict[str, object]:
    median = {(f.name.partition(", ")[2], f.unit): f.median for f in figures}
    row = {
        "tokens": num_tokens,
        "kept": kept,
        "dense_s": median["dense", "s"],
        "sparse_s": median["speculative", "s"],
        "score_s": median["scoring", "s"],
        "lookahead_s": median["look-ahead", "s"],
        "sparse_prefill_s": median["sparse prefill", "s"],
        "predicted_s": median["scoring", "s"] + median["look-ahead", "s"] + median["as many, dense", "s"],
        "ratio": median["dense", "s"] / median["speculative", "s"],
    }
    if ("dense", "CPU-s") in median:
        row["cpu_ratio"] = median["dense", "CPU-s"] / median["speculative", "CPU-s"]
    return row


def cells(row: dict[str, object]) -> tuple[str, ...]:
    cpu_ratio = f"{row['cpu_ratio']:.2f}" if "cpu_ratio" in row else ""
    times = [f"{row[f'{name}_s']:.2f}" for name in ("dense", "sparse", "score", "lookahead", "sparse_prefill")]
    share = row["kept"] / row["tokens"]
    return (f"{row['tokens']:,}", f"{share:.0%}", *times, f"{row['predicted_s']:.2f}", f"{row['ratio']:.2f}", cpu_ratio)


def further_turn(target: vkprefill.Model, num_tokens: int, new_tokens: int) -> dict[str, Times]:
    """Times of a prompt of num_tokens, then of new_tokens more on the same cache."""
    ids, cache = prompt_ids(target, num_tokens + new_tokens), target.new_cache()
    first = timed(lambda: target.prefill(ids[:num_tokens], cache=cache))
    further = timed(lambda: target.prefill(ids[num_tokens:], cache=cache))
    cache.close()
    return {f"prompt of {num_tokens}": first, f"{new_tokens} more after {num_tokens}": further}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default=DATA / "target.gguf")
    parser.add_argument("-md", "--model-draft", default=DATA / "draft.gguf")
    parser.add_argument("--lengths", default="1024,2048,4096,8192")
    parser.add_argument("--keep", type=float, default=0.2)
    parser.add_argument("-r", "--repetitions", type=int, default=3)
    parser.add_argument("--turn", default="4000,100", help="tokens of a first and of a further turn; 0,0 for none")
    parser.add_argument("--json", metavar="FILE", help="write the record")
    args = parser.parse_args(argv)
    lengths, turn = [int(n) for n in args.lengths.split(",")], [int(n) for n in args.turn.split(",")]
    context, rows, figures = max(*lengths, sum(turn)) + 64, [], []
    with ExitStack() as stack:
        target = stack.enter_context(vkprefill.load(args.model, max_context=context))
        draft = stack.enter_context(vkprefill.load(args.model_draft, target.device, max_context=context))
        info, cpu = target.device.info, has_cpu_time(target)
        print(f"{target.config.name}, draft {draft.config.name}, {info.name}, {info.driver}")
        for length in lengths:
            row, measured = compare(target, draft, length, args.keep, args.repetitions)
            rows.append(row)
            figures += measured
        if turn[1]:
            further = further_turn(target, *turn)
            figures += [f for name, times in further.items() for f in seconds(name, [times], cpu)]
    print(markdown_table((*COLUMNS, "in CPU-s"), [cells(row) for row in rows]))
    if turn[1]:
        print(*(f"{name}: {times.wall_s:.3f} s ({times.cpu_s:.3f} CPU-s)" for name, times in further.items()), sep="\n")
    if args.json:
        command = shlex.join(["python", "-m", "benchmarks.first_token", *(sys.argv[1:] if argv is None else argv)])
        Record(about(command, info), figures, {"rows": rows}).write(args.json)


if __name__ == "__main__":
    main()
