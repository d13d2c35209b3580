"""Time to the first token, dense and speculative side by side in one run, and the cost of a further turn.

python benchmarks/first_token.py [-m TARGET.gguf -md DRAFT.gguf] [--lengths 1024,2048] [--keep 0.2] [-r 3]

Every figure is a median over repetitions that alternate between the two. `predicted` is what the split predicts: the
scorer's time with look-ahead, and the dense time of as many tokens as were kept; the rest of the difference is
attention over a shorter past and the selection. CPU seconds (all threads) are what is comparable on a busy machine.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import vkprefill
from vkprefill.benchmark.speed import random_tokens
from vkprefill.generation.sampling import SamplingConfig
from vkprefill.generation.tokens import dense_plan, stream_tokens

DATA = Path(vkprefill.__file__).parent / "data"
SAMPLING = SamplingConfig(temperature=0, top_k=1, top_p=1, min_p=0, presence_penalty=0)


def prompt_ids(model: vkprefill.Model, num_tokens: int) -> list[int]:
    """Random tokens: the cost does not depend on which."""
    return random_tokens(num_tokens, model.config.vocab_size, seed=num_tokens)


def timed(work: Callable[[], object]) -> tuple[object, float, float]:
    """(result, wall seconds, CPU seconds)."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return result, time.perf_counter() - wall, time.process_time() - cpu


def first_token(model: vkprefill.Model, ids: list[int], spec: vkprefill.SpecPrefill | None):
    """The report of a first token; with a SpecPrefill, from its plan on."""
    cache = model.new_cache()
    try:
        plan = dense_plan(len(ids)) if spec is None else spec.plan(ids)
        part = next(iter(stream_tokens(model, ids, cache, SAMPLING, plan, max_tokens=1)))
        return part.specprefill
    finally:
        cache.close()


def compare(
    target: vkprefill.Model, draft: vkprefill.Model, num_tokens: int, keep: float, repetitions: int
) -> dict[str, object]:
    """One row of the table."""
    config = vkprefill.SpecPrefillConfig(
        select_mode="chunk", keep_ratio=keep, max_keep=0, break_even=False, tool_guard=False
    )
    ids, dense, sparse, short, reports = prompt_ids(target, num_tokens), [], [], [], []
    for _ in range(repetitions):
        _, *figures = timed(lambda: first_token(target, ids, None))
        dense.append(figures)
        spec = vkprefill.SpecPrefill(target, draft, config)  # a new one, or it would remember the selection
        report, *figures = timed(lambda spec=spec: first_token(target, ids, spec))
        spec.close()
        sparse.append(figures)
        reports.append(report)
        _, *figures = timed(lambda kept=report.kept_n: first_token(target, ids[:kept], None))
        short.append(figures)
    wall = {name: median(w for w, _ in runs) for name, runs in (("dense", dense), ("sparse", sparse), ("short", short))}
    cpu = {name: median(c for _, c in runs) for name, runs in (("dense", dense), ("sparse", sparse), ("short", short))}
    scoring = median((r.score_ms + r.lookahead_ms) / 1e3 for r in reports)
    return {
        "tokens": num_tokens,
        "kept": reports[0].kept_n,
        "dense_s": wall["dense"],
        "sparse_s": wall["sparse"],
        "score_s": median(r.score_ms / 1e3 for r in reports),
        "lookahead_s": median(r.lookahead_ms / 1e3 for r in reports),
        "sparse_prefill_s": median(r.sparse_prefill_ms / 1e3 for r in reports),
        "predicted_s": scoring + wall["short"],
        "dense_cpu_s": cpu["dense"],
        "sparse_cpu_s": cpu["sparse"],
        "ratio": wall["dense"] / wall["sparse"],
        "cpu_ratio": cpu["dense"] / cpu["sparse"],
    }


def further_turn(target: vkprefill.Model, num_tokens: int, new_tokens: int) -> dict[str, float]:
    """Seconds of a prompt of num_tokens, then of new_tokens more on the same cache."""
    ids, cache = prompt_ids(target, num_tokens + new_tokens), target.new_cache()
    _, first, first_cpu = timed(lambda: target.prefill(ids[:num_tokens], cache=cache))
    _, further, further_cpu = timed(lambda: target.prefill(ids[num_tokens:], cache=cache))
    cache.close()
    return {"first_s": first, "further_s": further, "first_cpu_s": first_cpu, "further_cpu_s": further_cpu}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-m", "--model", default=DATA / "target.gguf")
    parser.add_argument("-md", "--model-draft", default=DATA / "draft.gguf")
    parser.add_argument("--lengths", default="1024,2048,4096,8192")
    parser.add_argument("--keep", type=float, default=0.2)
    parser.add_argument("-r", "--repetitions", type=int, default=3)
    parser.add_argument("--turn", default="4000,100", help="tokens of a first and of a further turn; 0,0 for none")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    lengths, turn = [int(n) for n in args.lengths.split(",")], [int(n) for n in args.turn.split(",")]
    context = max(*lengths, sum(turn)) + 64
    with vkprefill.load(args.model, max_context=context) as target:
        draft = vkprefill.load(args.model_draft, target.device, max_context=context)
        print(
            f"{target.config.name}, draft {draft.config.name}, {target.device.info.name}, {target.device.info.driver}"
        )
        for model in (target, draft):
            first_token(model, prompt_ids(model, 40), None)  # compiles
        compare(target, draft, 64, 0.5, 1)
        rows = []
        columns = ["tokens", "kept", "dense s", "speculative s", "scoring", "look-ahead", "prefill", "predicted s"]
        columns += ["ratio", "CPU ratio"]
        print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
        for length in lengths:
            row = compare(target, draft, length, args.keep, args.repetitions)
            rows.append(row)
            print(
                f"| {length} | {row['kept'] / length:.0%} | {row['dense_s']:.2f} "
                f"| {row['sparse_s']:.2f} | {row['score_s']:.2f} "
                f"| {row['lookahead_s']:.2f} | {row['sparse_prefill_s']:.2f} | {row['predicted_s']:.2f} "
                f"| {row['ratio']:.2f} | {row['cpu_ratio']:.2f} |",
                flush=True,
            )
        further = further_turn(target, *turn) if turn[1] else None
        if further:
            print(
                f"\n{turn[0]} tokens: {further['first_s']:.2f} s ({further['first_cpu_s']:.2f} CPU-s); "
                f"{turn[1]} more: {further['further_s']:.3f} s ({further['further_cpu_s']:.3f} CPU-s)"
            )
        if args.json:
            Path(args.json).write_text(json.dumps({"rows": rows, "further_turn": further}, indent=1))


if __name__ == "__main__":
    main()
