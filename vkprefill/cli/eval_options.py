"""Options of vkprefill eval: which tasks, what is compared, what is written; and what they stand for."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from vkprefill.cli.common import draft_path, terminal_text
from vkprefill.cli.specprefill_options import flag, specprefill_config
from vkprefill.errors import RequestError
from vkprefill.evaluation.hidden_link import KIND as HIDDEN_LINK
from vkprefill.evaluation.methods import (
    BUDGET,
    CHECKED,
    DENSE,
    DRAFT,
    METHODS,
    SELF,
    Budget,
    Variant,
    read_variant,
)
from vkprefill.evaluation.ruler import NOT_MADE, RULER
from vkprefill.evaluation.tasks import KINDS, NAMED

LENGTHS, NUM_TASKS, KEEP = (512, 1024, 2048), 20, (0.2,)
ANSWER, LONG_ANSWER = 32, 128  # tokens; LONG_ANSWER for lists of words and codes
ALL_OF_RULER = "ruler:all"
INSTRUCTION = "Answer with nothing but the answer."


def add_eval_options(parser: argparse.ArgumentParser) -> None:
    """All but those of the models."""
    tasks = parser.add_argument_group("tasks")
    tasks.add_argument(
        "--lengths", type=list_of(int), metavar="N,...", help=f"prompt lengths in tokens (default: {joined(LENGTHS)})"
    )
    tasks.add_argument(
        "--tasks",
        type=int,
        metavar="N",
        help=f"tasks of each length, over all kinds (default: {NUM_TASKS}); with -f: the first N",
    )
    tasks.add_argument(
        "--kinds",
        type=list_of(str),
        metavar="KIND,...",
        help=f"{described(KINDS)} (default: these; the built-in model: without code); {HIDDEN_LINK}: a fact and a "
        f"question without a common word; {', '.join(RULER)}, {ALL_OF_RULER}: tasks of RULER",
    )
    tasks.add_argument(
        "--haystack",
        metavar="FILE",
        help="text whose sentences surround the facts, in place of made ones (not in code, and where RULER repeats, or "
        "has lists)",
    )
    tasks.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        help='JSONL in place of made tasks: {"prompt": "..." or "messages": [...], "answer": "..." or '
        '[...]}; right where the answer contains one of them. "question": the part of the prompt that --force-question '
        'keeps (default: the last 64 tokens). Or with the fields of LongBench: "context", "input", "answers"',
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
        "-n",
        "--n-predict",
        type=int,
        metavar="N",
        help=f"at most N tokens of answer (default: {ANSWER}, with tasks of RULER {LONG_ANSWER})",
    )
    tasks.add_argument(
        "--chat-template-kwargs", metavar="JSON", help="variables of the chat template (default: thinking is off)"
    )
    compared = parser.add_argument_group("what is compared")
    compared.add_argument(
        "--methods",
        type=list_of(str),
        metavar="METHOD,...",
        help=f"{described(METHODS)} (default: all where there is a "
        "draft but checked, self only where --self-layers or scorer self is given; without a draft dense, or dense and "
        "self)",
    )
    compared.add_argument(
        "--self-layers",
        type=_layers,
        metavar="LAYER,...",
        help="method self with each of these layers: full-attention ones before the last, or all of them (default: "
        "that of --specprefill-score-layer)",
    )
    compared.add_argument(
        "--keep",
        type=list_of(float),
        metavar="SHARE,...",
        help=f"shares of the chunks to keep, select mode chunk (default: {joined(KEEP)} where --mass is not given)",
    )
    compared.add_argument(
        "--mass", type=list_of(float), metavar="SHARE,...", help="cumulative masses to keep, select mode mass"
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
    output.add_argument(
        "--resume",
        metavar="FILE",
        help="keep each task's outcomes there as it is done, and take from there what an earlier start has done",
    )
    output.add_argument("--plot", metavar="FILE", help="write a picture as PNG (needs vkprefill[plots])")


def check_options(args: argparse.Namespace) -> None:
    """RequestError for values that no task or method has."""
    args.kinds = [*dict.fromkeys(one for kind in args.kinds or () for one in expanded(kind))]
    for given, known, name in ((args.kinds, NAMED, "--kinds"), (args.methods, METHODS, "--methods")):
        for one in given or ():
            if one in NOT_MADE:
                raise RequestError(f"{name}: {one} {NOT_MADE[one]}")
            if one not in known:
                raise RequestError(f"{name}: found {one}, wanted some of {', '.join(known)}")
    if args.n_predict is None:
        args.n_predict = LONG_ANSWER if {*args.kinds} & {*RULER} else ANSWER
    for name in ("tasks", "n_predict"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise RequestError(f"--{name.replace('_', '-')}: found {value}, wanted at least 1")
    for name in BUDGET:
        if getattr(args, f"specprefill_{name}") is not None:
            raise RequestError(f"{flag(name)}: eval sets it by --keep and --mass")
    if args.file is not None and (args.lengths or args.kinds or args.instruction is not None or args.haystack):
        raise RequestError("-f: --lengths, --kinds, --haystack and --instruction are for made tasks")


def expanded(kind: str) -> Sequence[str]:
    """The kinds that a name stands for."""
    return RULER if kind == ALL_OF_RULER else [kind]


def methods_of(args: argparse.Namespace) -> list[str]:
    """Those asked for, or all that there is something for. Where self is among them and there is no draft, that is the
    scorer, as if it had been chosen.
    """
    config, path = specprefill_config(args), draft_path(args)
    own = config is not None and (config.scorer == SELF or (path is None and args.specprefill))
    path = None if own or config is None else path
    by_self = own or args.self_layers is not None
    if args.methods:
        chosen = args.methods
    elif path is None:
        chosen = [DENSE, SELF] if by_self else [DENSE]
    else:
        chosen = [method for method in METHODS if method != CHECKED and (method != SELF or by_self)]
    by_layer = SELF in chosen or (path is None and CHECKED in chosen)
    if args.self_layers is not None and not by_layer:
        raise RequestError(f"--self-layers: found --methods {joined(chosen)}, wanted {SELF} among them")
    if args.specprefill is False and chosen != [DENSE]:
        raise RequestError(f"--no-specprefill: found --methods {joined(chosen)}, wanted {DENSE} alone")
    if by_layer and path is None:
        args.specprefill_scorer = SELF
    elif path is None and chosen != [DENSE]:
        raise RequestError(
            f"--methods {joined(chosen)}: there is no draft model; give one with -md FILE, or --methods {DENSE},{SELF}"
        )
    if path is None and DRAFT in chosen:
        raise RequestError(f"--methods {DRAFT}: there is no draft model; give one with -md FILE")
    return chosen


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


def list_of(kind: Callable[[str], object]) -> Callable[[str], list[object]]:
    def read(text: str) -> list[object]:
        return list(dict.fromkeys(kind(part.strip()) for part in text.split(",")))

    read.__name__ = f"list of {kind.__name__}"
    return read


def _layers(text: str) -> list[int] | str:
    return "all" if text == "all" else list_of(int)(text)


_layers.__name__ = "list of layers, or all,"


def joined(values: Sequence[object]) -> str:
    return ",".join(map(str, values))


def described(known: dict[str, str]) -> str:
    return "; ".join(f"{name}: {what}" for name, what in known.items())
