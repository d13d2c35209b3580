"""Fifty prompts for the built-in pair: 20 questions about texts of up to 4,000 tokens, 30 of more kinds, some awkward.

Greedy answers to them are compared where two ways should come to the same: precisions, with drafts and without.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

DATA = Path(__file__).parent / "data"
# Run by every `make test`: short ones of each sort.
QUICK = (
    "demo 0",
    "several, 150 tokens",
    "code, 120 tokens",
    "2 turns of 150 tokens",
    "one letter",
    "begun: Last week the",
)


@dataclass(frozen=True)
class Prompt:
    """messages: as for vkprefill.generate; answer: the right one, None where none is."""

    name: str
    messages: list[dict[str, str]]
    answer: str | None


def _read(file: str) -> list[dict]:
    return [json.loads(line) for line in (DATA / file).read_text(encoding="utf-8").splitlines()]


FIFTY = [
    *(
        Prompt(f"demo {d['id']}", [{"role": "user", "content": d["user"]}], d["answer"])
        for d in _read("demo_prompts.jsonl")
    ),
    *(Prompt(**d) for d in _read("more_prompts.jsonl")),
]
# To parametrize a test with: the quick ones always, all with --exhaustive.
EACH = [
    pytest.param(prompt, id=prompt.name, marks=() if prompt.name in QUICK else pytest.mark.exhaustive)
    for prompt in FIFTY
]
