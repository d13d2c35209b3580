#!/usr/bin/env python3
"""What drafts cost where they do not pay: python -m benchmarks.drafts_unpaid MODEL.gguf [-n N] [-r N] [--json FILE]

MODEL has a multi-token-prediction block whose drafts are seldom right: one of random weights. It is loaded twice,
without its block and, as by default, with it. Both give the same answers, token for token, in turn, a few tokens at a
time, so that other work on the machine meets both alike. In the first answer nothing is known of the drafts yet; later
ones go on with what was measured. What is counted (dispatches, rounds with drafts) depends on the machine only by the
times from which it follows whether to draft.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

from vkprefill.benchmark.record import Figure, Record, about, markdown_table
from vkprefill.benchmark.speed import random_tokens, timed
from vkprefill.drafting.settings import NONE, SpecDecodeConfig
from vkprefill.engine.model import Model, load
from vkprefill.generation.generate import GenerationPart, stream_generate
from vkprefill.generation.sampling import SamplingConfig
from vkprefill.vulkan.program import Program

PROMPT, TURN = 32, 16  # tokens of the prompt; of a turn of each side
GREEDY = SamplingConfig(temperature=0.0)
HEADER = ("answer", "CPU-s/token without", "with", "ratio", "rounds with drafts", "dispatches/token without", "with")


@dataclass
class Side:
    """One way to answer. cpu_s: of each answer, per token; dispatches: the same; drafting: rounds with drafts in it."""

    model: Model
    decode: SpecDecodeConfig
    cpu_s: list[float] = field(default_factory=list)
    dispatches: list[float] = field(default_factory=list)
    drafting: list[int] = field(default_factory=list)

    def answer(self, prompt: list[int], count: int) -> Iterator[GenerationPart]:
        more = {"max_tokens": count, "sampling": GREEDY, "decode": self.decode}
        return stream_generate(self.model, prompt, **more)


@contextmanager
def counted() -> Iterator[Counter]:
    """Dispatches and runs of programs by name, inside."""
    counts, run = Counter(), Program.run

    def counting(self: Program, *arguments: object) -> None:
        counts["dispatches"] += len(self.dispatches)
        counts[self.name] += 1
        run(self, *arguments)

    Program.run = counting
    try:
        yield counts
    finally:
        Program.run = run


def answer_in_turns(sides: list[Side], prompt: list[int], count: int) -> None:
    """Appends to each side's figures. The first token, with the prompt's prefill, is not counted."""
    streams = [side.answer(prompt, count) for side in sides]
    texts = [[next(stream).token_id] for stream in streams]
    cpu, counts = [0.0 for _ in sides], [Counter() for _ in sides]
    while len(texts[0]) < count and texts[0][-1] is not None:
        for i, stream in enumerate(streams):
            with counted() as found:
                times = timed(lambda i=i, stream=stream: texts[i].extend(p.token_id for p in islice(stream, TURN)))
            cpu[i] += times.cpu_s
            counts[i] += found
    if texts[0] != texts[1]:
        raise SystemExit("the answers differ: drafts must change no token")
    for i, side in enumerate(sides):
        side.cpu_s.append(cpu[i] / (len(texts[i]) - 1))
        side.dispatches.append(counts[i]["dispatches"] / (len(texts[i]) - 1))
        side.drafting.append(counts[i]["drafts"])


def table(plain: Side, drafted: Side) -> str:
    rows = [
        (f"{i + 1}", f"{a:.4f}", f"{b:.4f}", f"{b / a:.3f}", f"{n}", f"{c:.1f}", f"{d:.1f}")
        for i, (a, b, n, c, d) in enumerate(
            zip(plain.cpu_s, drafted.cpu_s, drafted.drafting, plain.dispatches, drafted.dispatches, strict=True)
        )
    ]
    return markdown_table(HEADER, rows)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", metavar="MODEL.gguf", help="with a multi-token-prediction block of random weights")
    parser.add_argument("-n", "--tokens", type=int, default=512, metavar="N", help="of an answer (default: 512)")
    parser.add_argument("-r", "--repetitions", type=int, default=3, metavar="N", help="answers (default: 3)")
    parser.add_argument("--device", metavar="DEVICE", help="index or part of the name (see: vkprefill devices)")
    parser.add_argument("--json", metavar="FILE", help="write the record")
    args = parser.parse_args(argv)
    context = PROMPT + args.tokens + 1
    with load(args.model, args.device, context, mtp=None) as plain, load(args.model, plain.device, context) as whole:
        if not whole.has_mtp:
            print(f"Error: {args.model}: no multi-token-prediction block, wanted a file with one", file=sys.stderr)
            return 1
        sides = [Side(plain, SpecDecodeConfig(NONE)), Side(whole, SpecDecodeConfig())]
        for side in sides:  # compiles what is compiled late
            list(islice(side.answer(random_tokens(PROMPT, plain.config.vocab_size, 99), 3), 3))
        for i in range(args.repetitions):
            answer_in_turns(sides, random_tokens(PROMPT, plain.config.vocab_size, 100 + i), args.tokens)
        info = plain.device.info
    command = shlex.join(["python", "-m", "benchmarks.drafts_unpaid", *(sys.argv[1:] if argv is None else argv)])
    ratios = tuple(b / a for a, b in zip(*(side.cpu_s for side in sides), strict=True))
    record = Record(
        about(command, info, tokens=args.tokens),
        [
            Figure("without the block", "CPU-s per token", tuple(sides[0].cpu_s)),
            Figure("with it", "CPU-s per token", tuple(sides[1].cpu_s)),
            Figure("with / without", "of CPU time", ratios),
            Figure("rounds with drafts", "in an answer", tuple(map(float, sides[1].drafting))),
            *(
                Figure(f"dispatches, {name}", "per token", tuple(side.dispatches))
                for name, side in zip(("without the block", "with it"), sides, strict=True)
            ),
        ],
    )
    print(table(*sides))
    if args.json:
        record.write(args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
