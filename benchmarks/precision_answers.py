"""Greedy answers to the fifty prompts of tests/prompts.py in full and in half precision, and how near a tie they come.

    python -m benchmarks.precision_answers [--json FILE] [--max-tokens 48] [--prompts N]

For each prompt, over the tokens that both answers have in common: the smallest margin by which the best token leads the
second (in full precision), and how far the two precisions' logits lie apart there. An answer can differ only where the
second is as large as the first.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import vkprefill
from tests.prompts import FIFTY, Prompt
from vkprefill.benchmark.record import Figure, Record, about, markdown_table
from vkprefill.cli.common import DEMO_TARGET, demo_path
from vkprefill.generation.prompt import encode_prompt

PRECISIONS = ("full", "half")


def greedy(model: vkprefill.Model, ids: list[int], max_tokens: int) -> Iterator[tuple[int, np.ndarray]]:
    """(token, the logits it is the best of) until the answer ends; its end is the last token."""
    cache = model.new_cache()
    try:
        logits = model.prefill(ids, cache=cache)
        for _ in range(max_tokens):
            token = int(logits.argmax())
            yield token, logits
            if token in model.tokenizer.eog_token_ids:
                return
            logits = model.decode(token, cache)
    finally:
        cache.close()


def compare(full: vkprefill.Model, half: vkprefill.Model, prompt: Prompt, max_tokens: int) -> dict[str, object]:
    """Of one prompt: what the answers have in common, and the figures of this module's head."""
    ids = encode_prompt(full, prompt.messages).token_ids
    margin, apart, equal, steps = np.inf, 0.0, True, 0
    for (a, logits), (b, rounded) in zip(greedy(full, ids, max_tokens), greedy(half, ids, max_tokens), strict=False):
        first, second = np.partition(logits, -2)[[-1, -2]]
        margin, apart = min(margin, float(first - second)), max(apart, float(np.abs(logits - rounded).max()))
        steps += 1
        if a != b:
            equal = False
            break
    return {
        "prompt": prompt.name,
        "prompt_tokens": len(ids),
        "answer_tokens": steps,
        "equal": equal,
        "smallest_margin": margin,
        "logits_apart": apart,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", type=Path)
    parser.add_argument("--max-tokens", type=int, default=48, metavar="N")
    parser.add_argument("--prompts", type=int, default=len(FIFTY), metavar="N", help="only the first N")
    args = parser.parse_args()
    with (
        vkprefill.load(demo_path(DEMO_TARGET), max_context=4096, precision=PRECISIONS[0]) as full,
        vkprefill.load(demo_path(DEMO_TARGET), full.device, max_context=4096, precision=PRECISIONS[1]) as half,
    ):
        rows = [compare(full, half, prompt, args.max_tokens) for prompt in FIFTY[: args.prompts]]
        command = f"python -m benchmarks.precision_answers --max-tokens {args.max_tokens} --prompts {args.prompts}"
        facts = about(command, full.device.info, model=DEMO_TARGET, kv_type=full.kv_type)
    figures = [
        Figure("answers that are equal", "prompts", (float(sum(row["equal"] for row in rows)),)),
        Figure("smallest margin of all tokens", "logit", (min(row["smallest_margin"] for row in rows),)),
        Figure("logits apart at most", "logit", (max(row["logits_apart"] for row in rows),)),
    ]
    if args.json:
        Record(facts, figures, {"prompts": rows}).write(args.json)
    columns = ("prompt", "tokens", "answer", "equal", "smallest margin", "logits apart")
    cells = [[f"{value:.4f}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows]
    print(markdown_table(columns, cells))


if __name__ == "__main__":
    main()
