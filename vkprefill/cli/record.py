"""vkprefill record: what is computed at named points, for every prompt of a file, written to a folder."""

from __future__ import annotations

import argparse
from contextlib import ExitStack, closing
from pathlib import Path

from rich.console import Console

from vkprefill.cli.common import add_model_options, model_options, model_path, notice, open_model, progress_bar
from vkprefill.cli.ray_options import add_ray_options, places_of
from vkprefill.display import quoted
from vkprefill.distributed.pool import results
from vkprefill.distributed.recording import RecordWork
from vkprefill.engine.microscope.edits import STEPS
from vkprefill.engine.microscope.names import expand
from vkprefill.engine.microscope.record import Wish
from vkprefill.engine.outline import Outline
from vkprefill.errors import RequestError
from vkprefill.gguf.file import open_gguf
from vkprefill.recording.prompts import read_prompts
from vkprefill.recording.run import recorded_here, recording_facts, write_recorded
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
    add_ray_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    if args.shard_mib < 1:
        raise RequestError(f"--shard-mib: found {args.shard_mib}, wanted at least 1")
    places = places_of(args)
    with ExitStack() as stack:
        model = stack.enter_context(open_model(args)) if places is None else Outline(open_gguf(model_path(args)))
        prompts, content = read_prompts(Path(args.prompts), model)
        names = tuple(expand(args.points.split(","), model.points))
        wish = Wish(names, chosen_tokens(args.tokens), args.steps, args.n_predict)
        options = model_options(args)
        facts = recording_facts(model, wish, content, args.dtype, args.shard_mib << 20, options)
        writer = ShardWriter(Path(args.output), facts, args.shard_mib << 20)
        if writer.done:
            notice(f"{args.output}: {writer.done} of {len(prompts)} prompts are there")
        todo = prompts[writer.done :]
        if places is None:
            recorded = stack.enter_context(closing(recorded_here(model, todo, wish, args.dtype)))
        else:
            work = RecordWork(model.path.absolute(), facts["model"]["sha256"], wish, args.dtype, options)
            recorded = stack.enter_context(results(places, work, todo))
        with progress_bar(Console(stderr=True)) as bar:
            task = bar.add_task("prompts", total=len(prompts))
            write_recorded(prompts, recorded, writer, lambda done, total: bar.update(task, completed=done))
    for name, why in writer.refused:
        notice(f"{args.output}: prompt {quoted(name)} is not there: {why}")
    notice(f"{args.output}: {len(prompts) - len(writer.refused)} prompts, {len(wish.names)} points")
    return 1 if writer.refused else 0


def chosen_tokens(text: str) -> str | slice:
    """ "last", "all" or "3:9" -> what Model.record takes. RequestError for other text."""
    if text in ("last", "all"):
        return text
    try:
        parts = [int(part) if part else None for part in text.split(":")]
    except ValueError:
        parts = []
    if not 2 <= len(parts) <= 3 or any(step is not None and step < 1 for step in parts[2:]):
        raise RequestError(f"--tokens: found {text!r}, wanted last, all or FIRST:END[:STEP]")
    return slice(*parts)
