#!/usr/bin/env python3
"""Text and drafts beside those of llama.cpp's own --spec-type draft-mtp on the same files.

python -m benchmarks.peers_drafts LLAMA MODEL.gguf [MODEL.gguf ...] [--json FILE]

LLAMA is llama-speculative-simple, one of llama.cpp's examples: cmake -DLLAMA_BUILD_EXAMPLES=ON, target
llama-speculative-simple; the source package of llama-cpp-python holds all that is needed. Each model runs as its
float32 copy, made in a temporary folder, greedy, with keys and values in float32: there both compute the same numbers
but for the order of sums. Rounds begin as in that program, with the last token of the prompt. Counted: answers that are
the same bytes, tokens drafted and accepted by each. (Where an answer ends inside a round, that program may count one
accepted token more.)
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.make_model import copy_as_f32
from vkprefill.benchmark.record import Figure, Record, about, markdown_table
from vkprefill.engine.model import Model, load
from vkprefill.engine.step_input import Best
from vkprefill.errors import VkPrefillError

PROMPTS = (
    "Hello there, this is a test",
    "1, 2, 3, 4, 5, 6,",
    "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n",
    "The quick brown fox jumps over the lazy dog. The quick brown fox jumps over",
    "Once upon a time there was a small village by the sea, where every morning the fishermen went out",
)
DRAFTS = (1, 2, 3, 4)
TOKENS = 48  # of an answer, at least
CONTEXT = 512
TRIES, END = 100, b"\n\n\n\n"
NOT_SHOWN = re.compile(rb"\[PAD\d+\]|\0")  # by llama.cpp: tokens without a text of their own, and NUL
HEADER = ("model", "drafts", "same answers", "tokens", "drafted", "accepted", "by llama.cpp: drafted", "accepted")


@dataclass(frozen=True)
class Answer:
    """text: bytes; drafted, accepted: tokens."""

    text: bytes
    tokens: int
    drafted: int
    accepted: int


def by_llama(program: str, model: Path, prompt: str, drafts: int) -> Answer:
    """Raises RuntimeError where the program fails, with its last line. It does not always wait for the thread that
    writes what it says: then it is asked again.
    """
    command = [program, "-m", str(model), "-p", prompt, "-n", str(TOKENS), "--temp", "0", "-c", str(CONTEXT)]
    command += ["-t", "1", "-ctk", "f32", "-ctv", "f32", "-fa", "off", "--no-repack", "--no-escape"]
    command += ["--spec-type", "draft-mtp", "--spec-draft-n-max", str(drafts)]
    for _ in range(TRIES):
        done = subprocess.run(command, capture_output=True)
        log = done.stderr.decode(errors="replace")
        if done.returncode:
            raise RuntimeError(f"{program}: exit status {done.returncode}: {log.splitlines()[-1] if log else ''}")
        found = {name: int(value) for name, value in re.findall(r"\bn_(predict|drafted|accept)\s+= (\d+)", log)}
        if len(found) == 3 and done.stdout.endswith(END):
            break
    else:
        raise RuntimeError(f"{program}: does not say how many tokens it drafted")
    before = b"\n\n" + prompt.encode()
    if not done.stdout.startswith(before):
        raise RuntimeError(f"{program}: its output does not begin with the prompt")
    text = done.stdout[len(before) :].removesuffix(END)
    return Answer(text, found["predict"], found["drafted"], found["accept"])


def by_us(model: Model, prompt: str, drafts: int) -> Answer:
    """The same rounds, by the parts that answers are made of: the block's drafter, a run of rows, one after another."""
    ids, cache, drafter = model.tokenizer.encode(prompt, special=True), model.new_cache(), model.drafter(0)
    model.extend(ids[:-1], cache)
    token, answer, ends = ids[-1], [], set(model.tokenizer.eog_token_ids)
    drafted = accepted = 0
    while len(answer) <= TOKENS and token not in ends:
        left = TOKENS - len(answer) - 1
        guesses = drafter.draft(token, cache, min(drafts, left) if left > 0 else drafts)  # there 0 is no limit
        rows = model.run_rows([token, *guesses], cache, Best(1))
        drafted, before = drafted + len(guesses), len(answer)
        for guess in (*guesses, None):
            token = int(rows.take()[0][0])
            answer.append(token)
            if token != guess or token in ends:
                break
        accepted += len(answer) - before - 1
    cache.close()
    shown = answer[: next((i for i, token in enumerate(answer) if token in ends), None)]
    text = b"".join(map(model.tokenizer.token_bytes, shown))
    return Answer(NOT_SHOWN.sub(b"", text), len(answer), drafted, accepted)


def compare(program: str, path: Path, folder: Path) -> list[dict[str, object]]:
    """A row for each number of drafts."""
    copy, rows = copy_as_f32(path, folder / path.name), []
    with load(copy, max_context=CONTEXT, kv_type="f32") as model:
        for drafts in DRAFTS:
            pairs = [(by_us(model, prompt, drafts), by_llama(program, copy, prompt, drafts)) for prompt in PROMPTS]
            ours, theirs = zip(*pairs, strict=True)
            rows.append(
                {
                    "model": path.stem,
                    "drafts": drafts,
                    "same": sum(a.text == b.text for a, b in pairs),
                    "prompts": len(PROMPTS),
                    "tokens": sum(a.tokens for a in ours),
                    "drafted": sum(a.drafted for a in ours),
                    "accepted": sum(a.accepted for a in ours),
                    "llama_drafted": sum(a.drafted for a in theirs),
                    "llama_accepted": sum(a.accepted for a in theirs),
                }
            )
    copy.unlink()
    return rows


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("llama", metavar="LLAMA", help="llama-speculative-simple")
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.gguf")
    parser.add_argument("--json", metavar="FILE", help="write the record")
    args = parser.parse_args(argv)
    rows: list[dict[str, object]] = []
    try:
        with TemporaryDirectory() as folder:
            for path in args.models:
                rows += compare(args.llama, path, Path(folder))
        with load(args.models[0], max_context=CONTEXT) as model:
            info = model.device.info
        version = subprocess.run([args.llama, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except (VkPrefillError, RuntimeError, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    names = [path.name for path in args.models]
    command = shlex.join(["python", "-m", "benchmarks.peers_drafts", "LLAMA", *names, "--json", "FILE"])
    said = version.stdout.strip().splitlines()
    record = Record(
        about(command, info, models=names, llama=said[0] if said else "", prompts=len(PROMPTS)),
        [Figure(f"{row['model']}, {row['drafts']} drafts: same answers", "/answers", (row["same"],)) for row in rows],
        {"rows": rows},
    )
    print(markdown_table(HEADER, [cells(row) for row in rows]))
    if args.json:
        record.write(args.json)
    return 0 if all(row["same"] == row["prompts"] for row in rows) else 1


def cells(row: dict[str, object]) -> tuple[str, ...]:
    same = f"{row['same']} of {row['prompts']}"
    names = ("tokens", "drafted", "accepted", "llama_drafted", "llama_accepted")
    return str(row["model"]), str(row["drafts"]), same, *(f"{row[name]:,}" for name in names)


if __name__ == "__main__":
    sys.exit(main())
