"""vkprefill eval: does sparse prefill keep the answers?"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from importlib.metadata import version

from rich.console import Console

from vkprefill.cli.common import (
    DEMO_TARGET,
    add_draft_options,
    add_model_options,
    demo_path,
    draft_path,
    notice,
    open_pair,
    progress_bar,
    template_kwargs,
    terminal_text,
)
from vkprefill.cli.output_file import OutputFile
from vkprefill.cli.specprefill_options import flag, refuse_checks, specprefill_config
from vkprefill.engine.model import Model
from vkprefill.errors import RequestError, VkPrefillError
from vkprefill.evaluation.methods import BUDGET, DENSE, METHODS, Budget, Variant, read_variant
from vkprefill.evaluation.plot import plot, require_matplotlib
from vkprefill.evaluation.report import as_json, cells, markdown, table
from vkprefill.evaluation.runs import Evaluation, Outcome
from vkprefill.evaluation.tasks import KINDS, Task, make_tasks, read_tasks
from vkprefill.generation.prompt import EncodedPrompt, encode_prompt

LENGTHS, NUM_TASKS, KEEP = (512, 1024, 2048), 20, (0.2,)
DEMO_KINDS = tuple(kind for kind in KINDS if kind != "code")
INSTRUCTION = "Answer with nothing but the answer."
ROOM = 256  # of a context beside a prompt and its answer
PIPED_WIDTH = 220  # of the table where stdout is no terminal

DESCRIPTION = """Run tasks with known answers densely, by speculative prefill and by controls of the same size, and
compare the answers. The tasks are made on the spot from a seed (needles in a generated text), or read from a file. All
answers are greedy. The guards of speculative prefill are off. Ctrl-C ends the run and reports what is done."""


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
    tasks = parser.add_argument_group("tasks")
    tasks.add_argument(
        "--lengths", type=_list_of(int), metavar="N,...", help=f"prompt lengths in tokens (default: {_join(LENGTHS)})"
    )
    tasks.add_argument(
        "--tasks",
        type=int,
        metavar="N",
        help=f"tasks of each length, over all kinds (default: {NUM_TASKS}); with -f: the first N",
    )
    tasks.add_argument(
        "--kinds",
        type=_list_of(str),
        metavar="KIND,...",
        help=f"{_describe(KINDS)} (default: all; the built-in model: without code)",
    )
    tasks.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        help='JSONL in place of made tasks: {"prompt": "..." or "messages": [...], "answer": "..." or '
        '[...]}; right where the answer contains one of them. "question": the part of the prompt that --force-question '
        "keeps (default: the last 64 tokens)",
    )
    tasks.add_argument(
        "-s",
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="the same seed makes the same tasks and random chunks (default: 0)",
    )
    tasks.add_argument(
        "--instruction",
        type=terminal_text,
        metavar="TEXT",
        help=f'follows each made question (default: "{INSTRUCTION}"; none for the built-in model)',
    )
    tasks.add_argument(
        "-n", "--n-predict", type=int, default=32, metavar="N", help="at most N tokens of answer (default: 32)"
    )
    tasks.add_argument(
        "--chat-template-kwargs", metavar="JSON", help="variables of the chat template (default: thinking is off)"
    )
    compared = parser.add_argument_group("what is compared")
    compared.add_argument(
        "--methods", type=_list_of(str), metavar="METHOD,...", help=f"{_describe(METHODS)} (default: all)"
    )
    compared.add_argument(
        "--keep",
        type=_list_of(float),
        metavar="SHARE,...",
        help=f"shares of the chunks to keep, select mode chunk (default: {_join(KEEP)} where --mass is not given)",
    )
    compared.add_argument(
        "--mass", type=_list_of(float), metavar="SHARE,...", help="cumulative masses to keep, select mode mass"
    )
    compared.add_argument(
        "--force-question",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="keep the question's chunks in any case, whatever is protected; they count in --keep (default: off)",
    )
    compared.add_argument(
        "--variant",
        action="append",
        default=[],
        metavar="SETTINGS",
        help="run the draft with other settings too, such as window=512 "
        "or lookahead=3,pool_size=1 or protect_question=off; may be given several times",
    )
    output = parser.add_argument_group("output (a table on stdout, without some columns on a narrow terminal)")
    output.add_argument(
        "--json", metavar="FILE", help="write cells and outcomes as JSON; - for stdout, and the table on stderr"
    )
    output.add_argument("--report", metavar="FILE", help="write the table as Markdown, with the command and the device")
    output.add_argument("--plot", metavar="FILE", help="write a picture as PNG (needs vkprefill[plots])")
    add_model_options(parser)
    add_draft_options(parser)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    refuse_checks(args)
    check_options(args)
    if args.plot:
        require_matplotlib()
    methods = args.methods or ([*METHODS] if draft_path(args) and args.specprefill is not False else [DENSE])
    args.specprefill_break_even = False  # no guards, so no speeds to measure
    budgets, variants = budgets_of(args), variants_of(args)
    if args.ctx_size is None and args.file is None:
        args.ctx_size = max(2, len({v.scoring for v in variants})) * (
            max(args.lengths or LENGTHS) + args.n_predict + ROOM
        )
    with ExitStack() as stack:
        paths = (args.json if args.json != "-" else None, args.report, args.plot)
        files = Files(*(stack.enter_context(OutputFile(path)) if path is not None else None for path in paths))
        model, draft, spec = stack.enter_context(open_pair(args))
        if draft is None and spec is not None:
            raise RequestError("scorer self: eval measures what a draft model chooses; wanted scorer draft")
        if draft is None and methods != [DENSE]:
            raise RequestError(
                f"--methods {_join(methods)}: there is no draft model; give one with -md FILE, or --methods {DENSE}"
            )
        groups = tasks_of(args, model)
        with closing(
            Evaluation(model, draft, methods, budgets, variants, max_tokens=args.n_predict, seed=args.seed)
        ) as evaluation:
            outcomes, stopped = measure(evaluation, groups)
        interrupted = isinstance(stopped, KeyboardInterrupt)
        about = {
            "command": f"vkprefill {shlex.join(sys.argv[1:])}",
            "version": version("vkprefill"),
            "date": time.strftime("%Y-%m-%d"),
            "complete": stopped is None,
            "model": model.path.name,
            "draft": draft.path.name if draft else None,
            "device": model.device.info.name,
            "driver": model.device.info.driver,
            "kv_type": model.kv_type,
            "precision": model.precision,
            "seed": args.seed,
            "settings": variants[0].config.as_dict(),
            "force_question": args.force_question,
        }
        if stopped is not None:
            planned = evaluation.runs_per_task * sum(map(len, groups))
            notice(f"{'interrupted' if interrupted else 'failed'}: {len(outcomes)} runs of {planned} are done")
        if outcomes:
            write(outcomes, about, files, json_on_stdout=args.json == "-")
    if stopped is not None and not interrupted:
        raise stopped
    return 130 if interrupted else 0


def measure(
    evaluation: Evaluation, groups: Sequence[Sequence[Task]]
) -> tuple[list[Outcome], KeyboardInterrupt | VkPrefillError | None]:
    """The outcomes, and what ended the run before there were all: hours of work are not to be lost."""
    outcomes: list[Outcome] = []
    try:
        with progress_bar(Console(stderr=True)) as bar:
            line = bar.add_task("eval", total=evaluation.runs_per_task * sum(map(len, groups)))
            for group in groups:
                start = time.perf_counter()
                for outcome in evaluation.run(group, lambda what: bar.update(line, description=what)):
                    outcomes.append(outcome)
                    bar.advance(line)
                what = "file" if group[0].length is None else f"{group[0].length} tokens"
                notice(f"{what}: {len(group)} tasks in {time.perf_counter() - start:.0f} s")
    except (KeyboardInterrupt, VkPrefillError) as error:
        return outcomes, error
    return outcomes, None


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


def check_options(args: argparse.Namespace) -> None:
    """RequestError for values that no task or method has."""
    for given, known, name in ((args.kinds, KINDS, "--kinds"), (args.methods, METHODS, "--methods")):
        for one in given or ():
            if one not in known:
                raise RequestError(f"{name}: found {one}, wanted some of {', '.join(known)}")
    for name in ("tasks", "n_predict"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise RequestError(f"--{name.replace('_', '-')}: found {value}, wanted at least 1")
    for name in BUDGET:
        if getattr(args, f"specprefill_{name}") is not None:
            raise RequestError(f"{flag(name)}: eval sets it by --keep and --mass")
    if args.file is not None and (args.lengths or args.kinds or args.instruction is not None):
        raise RequestError("-f: --lengths, --kinds and --instruction are for made tasks")


def budgets_of(args: argparse.Namespace) -> list[Budget]:
    keep = args.keep or (() if args.mass else KEEP)
    budgets = [*(Budget("chunk", share) for share in keep), *(Budget("mass", share) for share in args.mass or ())]
    for budget in budgets:
        if not 0 < budget.share <= 1:
            raise RequestError(
                f"--{'keep' if budget.mode == 'chunk' else 'mass'}: found {budget.share:g}, "
                "wanted a share above 0, at most 1"
            )
    return budgets


def variants_of(args: argparse.Namespace) -> list[Variant]:
    base = Variant("", specprefill_config(args) or args.specprefill_defaults, args.force_question)
    return [base, *(read_variant(text, base) for text in args.variant)]


def tasks_of(args: argparse.Namespace, model: Model) -> list[list[Task]]:
    """The tasks, those of a length together. RequestError where one does not fit into the context."""
    default = {"enable_thinking": False} if model.chat_template is not None else {}
    variables = {**default, **template_kwargs(args)}

    def encode(prompt: object) -> EncodedPrompt:
        return encode_prompt(model, prompt, template_kwargs=variables)

    if args.file is not None:
        groups = [read_tasks(args.file, encode)[: args.tasks]]
    else:
        is_demo = model.path.resolve() == demo_path(DEMO_TARGET).resolve()
        kinds = args.kinds or (DEMO_KINDS if is_demo else tuple(KINDS))
        usual = "" if is_demo else INSTRUCTION
        instruction = usual if args.instruction is None else args.instruction
        groups = [
            make_tasks(encode, length, kinds, args.tasks or NUM_TASKS, args.seed, instruction)
            for length in args.lengths or LENGTHS
        ]
    longest = max(len(task.token_ids) for group in groups for task in group)
    if longest + args.n_predict > model.max_context:
        raise RequestError(
            f"context: a task has {longest} tokens, the answer up to {args.n_predict}; "
            f"the context holds {model.max_context} (-c)"
        )
    return groups


def _list_of(kind: Callable[[str], object]) -> Callable[[str], list[object]]:
    def read(text: str) -> list[object]:
        return list(dict.fromkeys(kind(part.strip()) for part in text.split(",")))

    read.__name__ = f"list of {kind.__name__}"
    return read


def _join(values: Sequence[object]) -> str:
    return ",".join(map(str, values))


def _describe(known: dict[str, str]) -> str:
    return "; ".join(f"{name}: {what}" for name, what in known.items())
