"""vkprefill eval: does sparse prefill keep the answers?"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version

from rich.console import Console

from vkprefill.cli.common import (
    DEMO_TARGET,
    add_draft_options,
    add_model_options,
    demo_path,
    kv_type,
    notice,
    progress_bar,
    template_kwargs,
)
from vkprefill.cli.eval_options import (
    INSTRUCTION,
    LENGTHS,
    NUM_TASKS,
    add_eval_options,
    check_options,
)
from vkprefill.cli.eval_work import ByRay, Here, Plan, identity
from vkprefill.cli.interrupt import INTERRUPTED
from vkprefill.cli.output_file import OutputFile
from vkprefill.cli.ray_options import add_ray_options, places_of
from vkprefill.cli.specprefill_options import refuse_checks
from vkprefill.engine.outline import Outline
from vkprefill.errors import RequestError, VkPrefillError
from vkprefill.evaluation.files import read_tasks
from vkprefill.evaluation.haystack import read_haystack
from vkprefill.evaluation.methods import CHECKED, DENSE_STATE
from vkprefill.evaluation.plot import plot, require_matplotlib
from vkprefill.evaluation.record import Record
from vkprefill.evaluation.report import as_json, cells, markdown, table
from vkprefill.evaluation.runs import Outcome
from vkprefill.evaluation.task import Task
from vkprefill.evaluation.tasks import KINDS, make_tasks
from vkprefill.generation.prompt import EncodedPrompt, encode_prompt

DEMO_KINDS = tuple(kind for kind in KINDS if kind != "code")
ROOM = 256  # of a context beside a prompt and its answer
PIPED_WIDTH = 220  # of the table where stdout is no terminal

DESCRIPTION = """Run tasks with known answers densely, by speculative prefill and by controls of the same size, and
compare the answers. The tasks are made on the spot from a seed (facts hidden in a generated text; tasks of RULER in
words of our own), or read from a file. All answers are greedy. The guards of speculative prefill are off. Ctrl-C ends
the run and reports what is done; with --resume a further start goes on from there."""


@dataclass(frozen=True)
class Files:
    """What to write beside the table."""

    json: OutputFile | None
    report: OutputFile | None
    plot: OutputFile | None


def register(subcommands: argparse._SubParsersAction) -> None:
    parser = subcommands.add_parser(
        "eval", help="measure whether sparse prefill keeps the answers", description=DESCRIPTION
    )
    add_eval_options(parser)
    add_model_options(parser)
    add_draft_options(parser)
    add_ray_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    refuse_checks(args, f"checking answers is a method here: --methods {CHECKED}")
    if args.specprefill_scorer is not None:
        raise RequestError("--specprefill-scorer: who scores is a method here: --methods draft,self (--self-layers)")
    check_options(args)
    places = places_of(args)
    if args.plot:
        require_matplotlib()
    plan = Plan.of(args)
    if args.ctx_size is None and args.file is None:
        caches = 2 + ({CHECKED, DENSE_STATE} <= {*plan.methods})  # of a prompt, at a time
        longest = max(args.lengths or LENGTHS) + args.n_predict + ROOM
        args.ctx_size = max(caches, len({v.scoring for v in plan.variants})) * longest
    haystack = None if args.haystack is None else read_haystack(args.haystack)
    with ExitStack() as stack:
        paths = (args.json if args.json != "-" else None, args.report, args.plot)
        files = Files(*(stack.enter_context(OutputFile(path)) if path is not None else None for path in paths))
        source = stack.enter_context((Here(args, plan) if places is None else ByRay(args, plan, places)).open())
        model, draft = source.model, source.draft
        groups = tasks_of(args, model, haystack)
        check_room(args, groups, source.max_context)
        run_of = {
            "version": version("vkprefill"),
            "model": identity(model),
            "draft": identity(draft) if draft else None,
            **source.resumed_on,
            "methods": source.comparisons.names,
            "seed": args.seed,
            "n_predict": args.n_predict,
        }
        record = stack.enter_context(Record(args.resume, run_of)) if args.resume is not None else None
        outcomes, stopped = measure(source, groups, record)
        interrupted = isinstance(stopped, KeyboardInterrupt)
        about = {
            "command": f"vkprefill {shlex.join(sys.argv[1:])}",
            "version": version("vkprefill"),
            "date": time.strftime("%Y-%m-%d"),
            "complete": stopped is None,
            "model": model.path.name,
            "draft": draft.path.name if draft else None,
            "device": told(device.name for device in source.devices),
            "driver": told(device.driver for device in source.devices),
            "kv_type": kv_type(args),
            "precision": told(device.precision for device in source.devices),
            "seed": args.seed,
            "settings": plan.variants[0].config.as_dict(),
            "force_question": args.force_question,
        }
        if stopped is not None:
            planned = source.comparisons.runs_per_task * sum(map(len, groups))
            notice(f"{'interrupted' if interrupted else 'failed'}: {len(outcomes)} runs of {planned} are done")
        if outcomes:
            write(outcomes, about, files, json_on_stdout=args.json == "-")
    if stopped is not None and not interrupted:
        raise stopped
    return INTERRUPTED if interrupted else 0


def measure(
    source: Here | ByRay, groups: Sequence[Sequence[Task]], record: Record | None
) -> tuple[list[Outcome], KeyboardInterrupt | VkPrefillError | None]:
    """The outcomes, and what went wrong: hours of work are not to be lost. A task that is refused ends no other.

    record: has those of earlier starts, if any, and gets those of each task that is done.
    """
    outcomes: list[Outcome] = []
    refused: RequestError | None = None
    known = {task.id: record.outcomes_of(task) if record is not None else None for group in groups for task in group}
    todo = [task for group in groups for task in group if known[task.id] is None]
    try:
        with progress_bar(Console(stderr=True)) as bar, source.started(todo) as outcomes_of:
            line = bar.add_task("eval", total=source.comparisons.runs_per_task * sum(map(len, groups)))
            for group in groups:
                start = time.perf_counter()
                for task in group:
                    first = len(outcomes)
                    try:
                        found = known[task.id] or outcomes_of(task, lambda what: bar.update(line, description=what))
                        for outcome in found:
                            outcomes.append(outcome)
                            bar.advance(line)
                    except RequestError as error:
                        notice(f"{task.id}: {error}")
                        refused = refused or error
                        continue
                    if record is not None and known[task.id] is None:
                        record.add(task, outcomes[first:])
                what = "file" if group[0].length is None else f"{group[0].length} tokens"
                notice(f"{what}: {len(group)} tasks in {time.perf_counter() - start:.0f} s")
    except (KeyboardInterrupt, VkPrefillError) as error:
        return outcomes, error
    return outcomes, refused


def write(outcomes: Sequence[Outcome], about: dict[str, object], files: Files, *, json_on_stdout: bool) -> None:
    """The table, and the files that were asked for."""
    found = cells(outcomes)
    console = Console(stderr=json_on_stdout)
    if not console.is_terminal:
        console = Console(stderr=json_on_stdout, width=PIPED_WIDTH)
    console.print(table(found, console.width))
    text = json.dumps(as_json(outcomes, about), ensure_ascii=False)
    if json_on_stdout:
        print(text)
    if files.json:
        files.json.write(lambda file: file.write(f"{text}\n".encode()))
    if files.report:
        files.report.write(lambda file: file.write(markdown(found, about).encode()))
    if files.plot:
        files.plot.write(lambda file: plot(found, file))


def told(values: Iterable[str]) -> str:
    """Of the devices that outcomes came from, which are none where all came from an earlier start by Ray."""
    return "; ".join(sorted({*values})) or "of an earlier start"


def tasks_of(args: argparse.Namespace, model: Outline, haystack: Sequence[str] | None) -> list[list[Task]]:
    """The tasks, those of a length together."""
    default = {"enable_thinking": False} if model.chat_template is not None else {}
    variables = {**default, **template_kwargs(args)}

    def encode(prompt: object) -> EncodedPrompt:
        return encode_prompt(model, prompt, template_kwargs=variables)

    if args.file is not None:
        return [read_tasks(args.file, encode)[: args.tasks]]
    is_demo = model.path.resolve() == demo_path(DEMO_TARGET).resolve()
    kinds = args.kinds or (DEMO_KINDS if is_demo else tuple(KINDS))
    usual = "" if is_demo else INSTRUCTION
    instruction = usual if args.instruction is None else args.instruction
    return [
        make_tasks(encode, length, kinds, args.tasks or NUM_TASKS, args.seed, instruction, haystack=haystack)
        for length in args.lengths or LENGTHS
    ]


def check_room(args: argparse.Namespace, groups: Sequence[Sequence[Task]], max_context: int | None) -> None:
    """RequestError where a task does not fit into the context (None: nobody knows it yet)."""
    longest = max(len(task.token_ids) for group in groups for task in group)
    if max_context is not None and longest + args.n_predict > max_context:
        raise RequestError(
            f"context: a task has {longest} tokens, the answer up to {args.n_predict}; the context holds "
            f"{max_context} (-c)"
        )
