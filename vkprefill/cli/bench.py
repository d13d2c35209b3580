"""vkprefill bench: how fast a model runs on a device, and where the time goes."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict

from rich.console import Console

from vkprefill.benchmark.kernels import (
    ceilings_text,
    kernel_figures,
    measure_ceilings,
    measure_kernels,
    phase_table,
    second_of,
)
from vkprefill.benchmark.record import Figure, Record, about, describe, figures_table
from vkprefill.benchmark.speed import Report, measure_first_token, measure_speed
from vkprefill.benchmark.start import START_DECODES, measure_start
from vkprefill.benchmark.timeline import profile_text, recorded, sums, write_trace
from vkprefill.cli.common import (
    add_draft_options,
    add_model_options,
    kv_type,
    model_path,
    notice,
    open_pair,
)
from vkprefill.cli.output_file import OutputFile
from vkprefill.cli.profile_options import TRACE_HELP, check_timed, trace_file
from vkprefill.cli.specprefill_options import refuse_checks
from vkprefill.engine.sizes import MAX_CONTEXT
from vkprefill.errors import RequestError
from vkprefill.specprefill.pipeline import SpecPrefill
from vkprefill.specprefill.settings import SpecPrefillConfig
from vkprefill.vulkan.probe import choose
from vkprefill.vulkan.profiles import LARGEST
from vkprefill.vulkan.timing import Run

PROMPTS, NUM_DECODE, DEPTHS, REPETITIONS = (512,), 32, (0,), 3
MIN_CONTEXT = 256
FIRST_PROMPT = 64  # of --start with -p 0
SHARE = {"select_mode": "chunk", "keep_ratio": 0.2, "protect_question": False}  # random tokens ask nothing
DEFAULTS = SpecPrefillConfig(break_even=False, tool_guard=False, **SHARE)

DESCRIPTION = """Measure tokens per second of prefill and decode, like llama-bench. Prompts are random tokens. On a CPU
device there are also tokens per second of CPU time (CPU-s), summed over all threads of the process: that is what to
compare there on a machine that does other work too. On GPUs CPU time says nothing and is left out. With a draft model
(-md, or the built-in pair) the time to the first token is measured densely and by speculative prefill, by default
without guards and with a fifth of the chunks kept. Tables go to stdout as Markdown."""


def register(subcommands: argparse._SubParsersAction) -> None:
    parser = subcommands.add_parser("bench", help="measure speed", description=DESCRIPTION)
    what = parser.add_argument_group("what is measured")
    what.add_argument(
        "-p",
        "--n-prompt",
        type=lengths,
        default=PROMPTS,
        metavar="N,...",
        help=f"prompt lengths in tokens; 0: none (default: {join(PROMPTS)})",
    )
    what.add_argument(
        "-n",
        "--n-gen",
        type=int,
        default=NUM_DECODE,
        metavar="N",
        help=f"tokens decoded one by one; 0: none (default: {NUM_DECODE})",
    )
    what.add_argument(
        "-d",
        "--n-depth",
        type=lengths,
        default=DEPTHS,
        metavar="N,...",
        help=f"tokens in the cache before those are decoded (default: {join(DEPTHS)})",
    )
    what.add_argument(
        "-r", "--repetitions", type=int, default=REPETITIONS, metavar="N", help=f"runs of each (default: {REPETITIONS})"
    )
    what.add_argument(
        "--kernels",
        action="store_true",
        help="also the time of each kernel in one chunk of prefill and one step of decode after the first depth, "
        "beside what the device does at best: each dispatch alone, and by the device's clock as the product runs it",
    )
    what.add_argument(
        "--start",
        action="store_true",
        help="also loading by stage, the first token with an empty and with a filled shader cache, pipelines, and "
        "memory: accounted and, on a CPU device, taken by the process. In two processes of their own",
    )
    what.add_argument(
        "--profile",
        action="store_true",
        help="also how long each kernel took on the device in the prompts and tokens above, run again for that",
    )
    what.add_argument("--trace", metavar="FILE", help=f"with --kernels or --profile: {TRACE_HELP}")
    parser.add_argument("--json", metavar="FILE", help="write the record as JSON; - for stdout, without the tables")
    add_model_options(parser)
    add_draft_options(parser, DEFAULTS)
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    refuse_checks(args)
    check(args)
    check_timed(args)
    prompts = [n for n in args.n_prompt if n]
    step = (args.batch_size or LARGEST.prefill_chunk) + 1 if args.kernels else 0
    longest = max(max(prompts, default=FIRST_PROMPT) + START_DECODES, max(args.n_depth) + max(args.n_gen, step))
    args.ctx_size = args.ctx_size or min(MAX_CONTEXT, max(MIN_CONTEXT, longest))
    check_room(args)
    info = choose(args.device)
    args.device = info.index
    figures: list[Figure] = []
    texts: list[str] = []
    details: dict[str, object] = {}
    runs: list[Run] = []
    with ExitStack() as stack:
        output = stack.enter_context(OutputFile(args.json)) if args.json not in (None, "-") else None
        trace = stack.enter_context(trace_file(args))
        if args.start:
            path = str(model_path(args, told=False))
            figures += measure_start(
                path,
                info.index,
                {
                    "max_context": args.ctx_size,
                    "kv_type": kv_type(args),
                    "prefill_chunk": args.batch_size,
                    "precision": args.precision,
                },
                max(prompts, default=FIRST_PROMPT),
                notice,
            )
        model, draft, spec = stack.enter_context(open_pair(args))
        with status() as report:
            figures += measure_speed(model, prompts, args.n_gen, args.n_depth, args.repetitions, report)
            if args.kernels:
                report("kernels")
                ceilings, second = measure_ceilings(model.device), second_of(model.device)
                phases = measure_kernels(model, args.n_depth[0], args.repetitions, ceilings)
                figures += kernel_figures(phases, ceilings, second)
                details["kernels"] = {phase.name: [asdict(kernel) for kernel in phase.kernels] for phase in phases}
                untimed = model.device.abilities.untimed
                texts += [ceilings_text(ceilings, second, untimed), *(phase_table(phase, second) for phase in phases)]
                runs += [run for phase in phases for run in phase.runs]
            if args.profile:
                with recorded(model) as recording:
                    measure_speed(model, prompts, args.n_gen, args.n_depth, 1, report)
                details["profile"] = [asdict(program) for program in sums(recording.runs)]
                texts.append(profile_text(recording.runs))
                runs += recording.runs
            if trace is not None:
                trace.write(lambda file: write_trace(file, runs, info))
            if spec is not None and prompts:
                with closing(SpecPrefill(model, draft, spec)) as pair:
                    kept = []
                    for length in prompts:
                        measured, facts = measure_first_token(pair, length, args.repetitions, report)
                        figures += measured
                        kept.append(facts)
                details["speculative_prefill"] = {"settings": spec.as_dict(), "prompts": kept}
                texts.append(
                    "Speculative prefill: "
                    + "; ".join(
                        f"{' or '.join(map(str, k['kept']))} of {k['tokens']} tokens kept ({k['status']})" for k in kept
                    )
                )
        models = [m.path.name for m in (model, draft) if m is not None]
        command = shlex.join(["vkprefill", *sys.argv[1:]])
        about_run = about(
            command,
            info,
            models=models,
            profile=model.device.profile.name,
            barrier=model.device.has_barrier,
            features=sorted(model.device.abilities.features),
            kv_type=model.kv_type,
            precision=model.precision,
            prefill_chunk=model.prefill_chunk,
            context=model.max_context,
        )
        record = Record(about_run, figures, details)
        if output is not None:
            output.write(lambda file: file.write(record.to_json().encode() + b"\n"))
    if args.json == "-":
        print(record.to_json())
    else:
        print(describe(record.about), figures_table(figures), *texts, sep="\n\n")
    return 0


def check(args: argparse.Namespace) -> None:
    """Raises RequestError for numbers that mean nothing."""
    for option, values, least in (
        ("-p", args.n_prompt, 0),
        ("-d", args.n_depth, 0),
        ("-n", [args.n_gen], 0),
        ("-r", [args.repetitions], 1),
    ):
        if bad := [value for value in values if value < least]:
            raise RequestError(f"{option}: found {bad[0]}, wanted at least {least}")
    if args.trace is not None and not args.kernels and not args.profile:
        raise RequestError("--trace: needs --kernels or --profile, whose runs it shows")
    if args.profile and not any(args.n_prompt) and not args.n_gen:
        raise RequestError("--profile: -p 0 -n 0 leaves nothing to profile")
    if not any(args.n_prompt) and not args.n_gen and not args.kernels and not args.start:
        raise RequestError("-p 0 -n 0: nothing is measured; add --kernels or --start")


def check_room(args: argparse.Namespace) -> None:
    """Raises RequestError for what the context has no room for. A chunk of --kernels whose size was not asked for is
    as long as there is room.
    """
    prompt, depth = max(args.n_prompt), max(args.n_depth)
    needs = {f"-p {prompt}": prompt}
    if args.start:
        needs[f"-p {prompt} --start"] = (prompt or FIRST_PROMPT) + START_DECODES
    if args.n_gen:
        needs[f"-d {depth} -n {args.n_gen}"] = depth + args.n_gen
    if args.kernels:
        chunk = "" if args.batch_size is None else f" -b {args.batch_size}"
        needs[f"-d {args.n_depth[0]}{chunk} --kernels"] = args.n_depth[0] + (args.batch_size or 1) + 1
    whose = "the longest there is" if args.ctx_size == MAX_CONTEXT else "as -c has it"
    for flags, need in needs.items():
        if need > args.ctx_size:
            raise RequestError(f"{flags}: needs a context of {need} tokens, wanted at most {args.ctx_size}, {whose}")


def lengths(text: str) -> list[int]:
    """ "64,256" -> [64, 256], each once."""
    return list(dict.fromkeys(int(part) for part in text.split(",")))


def join(values: Sequence[int]) -> str:
    return ",".join(map(str, values))


@contextmanager
def status() -> Iterator[Report]:
    """A line on a terminal that says what is measured; nothing when stderr is piped."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status("measuring") as line:
        yield lambda text: line.update(f"measuring: {text}")
