#!/usr/bin/env python3
"""How often drafts from a cut head are accepted: python -m benchmarks.draft_heads [MODEL.gguf]

MODEL (default: the built-in one) has a multi-token-prediction block. Two drafts a round, always, greedy; from all rows
of the vocabulary's head, and from the first half, quarter and eighth of them, with special tokens and the
prompt's own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from benchmarks.peers_drafts import PROMPTS
from tests.prompts import FIFTY
from vkprefill.benchmark.record import markdown_table
from vkprefill.cli.common import DEMO_TARGET, demo_path
from vkprefill.drafting.settings import SpecDecodeConfig
from vkprefill.engine.model import Model, load
from vkprefill.generation.generate import generate
from vkprefill.generation.sampling import SamplingConfig
from vkprefill.generation.steps import Timings

PARTS = (1, 2, 4, 8)  # of the vocabulary: a head of one such part of it
MOST_CHARS = 6000  # of a prompt
HEADER = ("what", "part of the head", "drafted", "accepted", "of drafted")


def questions(model: Model, more: dict[str, object]) -> list[Timings]:
    """Short answers, most of them copied out of the prompt."""
    some = [p.messages for p in FIFTY if sum(len(message["content"]) for message in p.messages) < MOST_CHARS]
    return [generate(model, messages, max_tokens=48, **more).timings for messages in some]


def texts(model: Model, more: dict[str, object]) -> list[Timings]:
    """Gone on with for a hundred tokens."""
    return [generate(model, text, raw=True, max_tokens=100, **more).timings for text in PROMPTS]


def row(model: Model, what: Callable[[Model, dict[str, object]], list[Timings]], part: int) -> tuple[str, ...]:
    rows = 0 if part == 1 else model.config.vocab_size // part
    decode = SpecDecodeConfig("draft-mtp", n_max=2, adaptive=False, head_rows=rows)
    found = what(model, {"decode": decode, "sampling": SamplingConfig(temperature=0.0)})
    drafted, accepted = sum(t.draft_n for t in found), sum(t.draft_n_accepted for t in found)
    return what.__name__, f"1/{part}", f"{drafted}", f"{accepted}", f"{accepted / drafted:.3f}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default=demo_path(DEMO_TARGET), metavar="MODEL.gguf")
    with load(parser.parse_args(argv).model, max_context=4096) as model:
        if not model.has_mtp:
            print(f"Error: {model.path}: no multi-token-prediction block, wanted a file with one", file=sys.stderr)
            return 1
        print(markdown_table(HEADER, [row(model, what, part) for what in (questions, texts) for part in PARTS]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
