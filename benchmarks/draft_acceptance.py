"""How often drafts of a model's multi-token-prediction block are right, over prompts made on the spot.

    python -m benchmarks.draft_acceptance [-m FILE] [--prompts 20] [--lengths 512,1024,2048] [--json FILE]

Questions about facts in texts (as of `vkprefill eval`), and texts begun for the model to continue; greedy answers, by
1 to 4 drafts a round, always as many. A step is a run of the trunk in decode. An answer with drafts that is not the
answer without ends the program.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from unittest import mock

import vkprefill
from vkprefill import SamplingConfig, SpecDecodeConfig
from vkprefill.benchmark.record import Figure, Record, about, markdown_table
from vkprefill.cli.common import DEMO_TARGET, demo_path
from vkprefill.drafting.drafters import drafting_for
from vkprefill.evaluation.sentences import FILLERS, filler
from vkprefill.evaluation.tasks import make_tasks
from vkprefill.generation.generate import encode_prompt
from vkprefill.generation.sampling import Sampler
from vkprefill.generation.steps import Timings, generate_step

KINDS = {"one fact": ("single", "distractors"), "two facts": ("several",)}
TEXTS = "texts continued"
GREEDY = SamplingConfig(temperature=0.0)
DEPTHS = range(1, 5)
ANSWER_TOKENS, TEXT_TOKENS = 24, 64
TEXT_SENTENCES = 12  # of a text to be continued


def questions(model: vkprefill.Model, kinds: tuple[str, ...], lengths: list[int], count: int, seed: int) -> Iterator:
    """Token ids of `count` prompts of each length."""
    for length in lengths:
        tasks = make_tasks(lambda p: encode_prompt(model, p), length, kinds, count, seed)
        yield from (list(task.token_ids) for task in tasks)


def begun_texts(model: vkprefill.Model, count: int, seed: int) -> Iterator[list[int]]:
    """Token ids of texts whose last sentence has only its first two words."""
    rng = random.Random(seed)
    for _ in range(count):
        *whole, last = [filler(rng, FILLERS) for _ in range(TEXT_SENTENCES)]
        yield model.tokenizer.encode(" ".join([*whole, *last.split()[:2]]))


def measure(model: vkprefill.Model, prompts: list[list[int]], max_tokens: int) -> list[dict[str, int]]:
    """For each depth: sums over the prompts, each of which is prefilled once."""
    sums = [{"n": depth, "drafted": 0, "accepted": 0, "tokens": 0, "steps": 0} for depth in DEPTHS]
    for number, ids in enumerate(prompts):
        cache = model.new_cache()
        model.prefill(ids[:-1], cache=cache)
        start = cache.snapshot()
        wanted, *_ = answer(model, ids, cache, SpecDecodeConfig("none"), max_tokens)
        for found in sums:
            cache.restore(start)
            decode = SpecDecodeConfig("draft-mtp", n_max=found["n"], adaptive=False)
            tokens, timings, steps = answer(model, ids, cache, decode, max_tokens)
            if tokens != wanted:
                raise SystemExit(f"prompt {number} with {found['n']} drafts: {tokens}, without: {wanted}")
            for name, value in (
                ("drafted", timings.draft_n),
                ("accepted", timings.draft_n_accepted),
                ("tokens", len(tokens) - 1),  # the first is prefill's
                ("steps", steps),
            ):
                found[name] += value
        start.free()
        cache.close()
    return sums


def answer(
    model: vkprefill.Model, ids: list[int], cache: vkprefill.Cache, decode: SpecDecodeConfig, max_tokens: int
) -> tuple[list[int], Timings, int]:
    """(the tokens of a greedy answer and its end, their timings, steps of decode); the cache lacks the last id."""
    tokens, timings, sampler = [], Timings(), Sampler(GREEDY.resolve(model.metadata, False))
    drafting = drafting_for(model, decode, ids, len(ids))
    with mock.patch.object(model, "run_rows", wraps=model.run_rows) as runs:
        steps = generate_step(model, ids[-1:], cache, sampler, timings=timings, drafting=drafting, limit=max_tokens)
        for token in islice(steps, max_tokens):
            tokens.append(token)
            if token in model.tokenizer.eog_token_ids:
                break
        steps.close()
    return tokens, timings, runs.call_count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=Path, default=demo_path(DEMO_TARGET))
    parser.add_argument("--prompts", type=int, default=20, metavar="N", help="of each length and kind")
    parser.add_argument("--lengths", default="512,1024,2048", help="tokens of the questions' prompts")
    parser.add_argument("--seed", type=int, default=4711)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    lengths, rows, figures = [int(n) for n in args.lengths.split(",")], [], []
    with vkprefill.load(args.model, max_context=4096) as model:
        sets = {
            name: (list(questions(model, of, lengths, args.prompts, args.seed)), ANSWER_TOKENS)
            for name, of in KINDS.items()
        }
        sets[TEXTS] = list(begun_texts(model, args.prompts, args.seed)), TEXT_TOKENS
        for name, (prompts, max_tokens) in sets.items():
            for found in measure(model, prompts, max_tokens):
                share = found["accepted"] / max(1, found["drafted"])
                per_step = found["tokens"] / found["steps"]
                figures.append(Figure(f"{name}, n = {found['n']}: accepted of drafted", "share/draft", (share,)))
                figures.append(Figure(f"{name}, n = {found['n']}", "tokens/step", (per_step,)))
                cells = (len(prompts), found["n"], found["drafted"], found["accepted"])
                rows.append([name, *map(str, cells), f"{share:.2f}", f"{per_step:.2f}"])
        command = f"python -m benchmarks.draft_acceptance --prompts {args.prompts} --lengths {args.lengths}"
        record = Record(about(command, model.device.info, model=args.model.name, seed=args.seed), figures)
    if args.json:
        record.write(args.json)
    columns = ("prompts of", "number", "n", "drafted", "accepted", "accepted of drafted", "tokens a step")
    print(markdown_table(columns, rows))


if __name__ == "__main__":
    main()
