"""Flags of drafts, with llama.cpp's names: n_max has --spec-draft-n-max."""

from __future__ import annotations

import argparse

from vkprefill.drafting.settings import NGRAM, NONE, TYPES, SpecDecodeConfig
from vkprefill.errors import RequestError

PREFIX = "--spec-draft-"


def add_drafting_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags in a group of their own."""
    defaults = SpecDecodeConfig()
    group = parser.add_argument_group(
        "drafted tokens", "Tokens are guessed ahead, and several verified in one step: the answer is the same, sooner."
    )
    group.add_argument(
        "--spec-type",
        type=_in_one_order,
        choices=TYPES,
        metavar="TYPE",
        default=defaults.type,
        help="who guesses: draft-mtp is the file's multi-token-prediction block, ngram looks the last tokens up in the "
        "prompt and the answer, draft-mtp,ngram looks up first, auto is draft-mtp where the file has the block, none "
        f"guesses nothing (default: {defaults.type})",
    )
    group.add_argument(
        f"{PREFIX}n-max",
        type=int,
        default=defaults.n_max,
        metavar="N",
        help=f"most tokens of a draft, 1 to 7 (default: {defaults.n_max})",
    )
    group.add_argument(
        f"{PREFIX}n-min",
        type=int,
        default=defaults.n_min,
        metavar="N",
        help=f"shorter drafts are dropped (default: {defaults.n_min})",
    )
    group.add_argument(
        f"{PREFIX}p-min",
        type=float,
        default=defaults.p_min,
        metavar="P",
        help=f"the block's draft ends before a less probable token (default: {defaults.p_min:g})",
    )
    group.add_argument(
        f"{PREFIX}adaptive",
        action=argparse.BooleanOptionalAction,
        default=defaults.adaptive,
        help="draft less, or nothing, where that was measured to be faster (default: on)",
    )


def _in_one_order(kind: str) -> str:
    """A list of types as TYPES has it: "ngram,draft-mtp" is the same as "draft-mtp,ngram"."""
    return ",".join(sorted(kind.split(",")))


def may_use_block(args: argparse.Namespace) -> bool:
    """Whether drafts by the file's multi-token-prediction block are asked for; not so in subcommands without drafts."""
    return getattr(args, "spec_type", NONE) not in (NONE, NGRAM)


def drafting_config(args: argparse.Namespace) -> SpecDecodeConfig:
    """Raises RequestError, naming the flag."""
    given = {name: getattr(args, f"spec_draft_{name}") for name in ("n_max", "n_min", "p_min", "adaptive")}
    try:
        return SpecDecodeConfig(args.spec_type, **given)
    except RequestError as error:
        name, problem = str(error).split(":", 1)
        raise RequestError(f"{PREFIX}{name.replace('_', '-')}:{problem}") from None
