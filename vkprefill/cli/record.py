"""vkprefill record: what is computed at named points, for every prompt of a file, written to a folder."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from vkprefill.cli.common import add_model_options, notice, open_model, progress_bar
from vkprefill.engine.microscope.edits import STEPS
from vkprefill.engine.microscope.record import Wish
from vkprefill.errors import RequestError
from vkprefill.recording.prompts import read_prompts
from vkprefill.recording.run import record_prompts, recording_facts
from vkprefill.recording.shards import DTYPES, MANIFEST, ShardWriter

DESCRIPTION = (
    "Record points of every prompt of a file, one JSON object a line with `prompt` (text as it stands) or `token_ids`, "
    "and `id` if wanted. The folder gets safetensors shards with an array NUMBER/POINT for each prompt and point, and "
    f"{MANIFEST}. Started again after an interruption, it goes on after the last whole shard."
)


def register(subcommands: argparse._SubParsersAction) -> None:
    parser = subcommands.add_parser(
        "record", help="write what is computed at named points to a folder", description=DESCRIPTION
    )
    parser.add_argument("prompts", metavar="PROMPTS.jsonl", help="the prompts")
    parser.add_argument("-o", "--output", metavar="DIR", required=True, help="the folder to write")
    parser.add_argument(
        "--points",
        metavar="NAME,NAME",
        required=True,
        help="names of points, with * for any text, or short ones such as resid_post for that of every layer",
    )
    parser.add_argument(
        "--tokens",
        metavar="WHICH",
        default="last",
        help="of the prompt: last, all, or FIRST:END[:STEP] as a slice of Python (default: last)",
    )
    parser.add_argument("--steps", choices=STEPS, default="prefill", help="what is recorded (default: prefill)")
    parser.add_argument(
        "-n",
        "--n-predict",
        type=int,
        default=0,
        metavar="N",
        help="tokens to generate, for decode (default: 0)",
    )
    parser.add_argument("--dtype", choices=DTYPES, default="float16", help="of the arrays (default: float16)")
    parser.add_argument(
        "--shard-mib", type=int, default=256, metavar="MIB", help="size of a shard at most (default: 256)"
    )
    add_model_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    if args.shard_mib < 1:
        raise RequestError(f"--shard-mib: found {args.shard_mib}, wanted at least 1")
    tokens, max_bytes = chosen_tokens(args.tokens), args.shard_mib << 20
    with open_model(args) as model:
        prompts, content = read_prompts(Path(args.prompts), model)
        wish = Wish.of(model.runner, args.points.split(","), tokens, args.steps, args.n_predict)
        facts = recording_facts(model, wish, content, args.dtype, max_bytes)
        writer = ShardWriter(Path(args.output), facts, max_bytes)
        if writer.done:
            notice(f"{args.output}: {writer.done} of {len(prompts)} prompts are there")
        with progress_bar(Console(stderr=True)) as bar:
            task = bar.add_task("prompts", total=len(prompts))
            record_prompts(
                model, prompts, wish, writer, args.dtype, lambda done, total: bar.update(task, completed=done)
            )
    notice(f"{args.output}: {len(prompts)} prompts, {len(wish.names)} points")
    return 0


def chosen_tokens(text: str) -> str | slice:
    """ "last", "all" or "3:9" -> what Model.record takes. RequestError for other text."""
    if text in ("last", "all"):
        return text
    try:
        parts = [int(part) if part else None for part in text.split(":")]
    except ValueError:
        parts = []
    if not 2 <= len(parts) <= 3 or parts[2:] == [0]:
        raise RequestError(f"--tokens: found {text!r}, wanted last, all or FIRST:END[:STEP]")
    return slice(*parts)
