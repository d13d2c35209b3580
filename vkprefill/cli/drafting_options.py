"""Flags of drafts, with llama.cpp's names: n_max has --spec-draft-n-max."""

from __future__ import annotations

import argparse
from numbers import Integral

from vkprefill.checks import check_number
from vkprefill.drafting.settings import AUTO, NGRAM, NONE, SPELLINGS, SpecDecodeConfig
from vkprefill.engine.sizes import MAX_CONTEXT
from vkprefill.errors import RequestError

PREFIX = "--spec-draft-"
SETTINGS = ("n_max", "n_min", "p_min", "adaptive", "head_rows")  # of SpecDecodeConfig
OF_BLOCK = ("p_min", "head_rows", "window")
ALL = (*SETTINGS, "window")


def add_drafting_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags in a group of their own."""
    defaults = SpecDecodeConfig()
    group = parser.add_argument_group(
        "drafted tokens", "Tokens are guessed ahead, and several verified in one step: the answer is the same, sooner."
    )
    group.add_argument(
        "--spec-type",
        choices=SPELLINGS,
        metavar="TYPE",
        default=defaults.type,
        help="who guesses: draft-mtp is the file's multi-token-prediction block, ngram looks the last tokens up in the "
        "prompt and the answer, draft-mtp,ngram looks up first, auto is draft-mtp where the file has the block, none "
        f"guesses nothing (default: {defaults.type})",
    )
    group.add_argument(
        f"{PREFIX}n-max",
        type=int,
        metavar="N",
        help=f"most tokens of a draft, 1 to 7 (default: {defaults.n_max})",
    )
    group.add_argument(
        f"{PREFIX}n-min",
        type=int,
        metavar="N",
        help=f"shorter drafts are dropped, except where the answer ends with them (default: {defaults.n_min})",
    )
    group.add_argument(
        f"{PREFIX}p-min",
        type=float,
        metavar="P",
        help=f"the block's draft ends before a less probable token (default: {defaults.p_min:g})",
    )
    group.add_argument(
        f"{PREFIX}adaptive",
        action=argparse.BooleanOptionalAction,
        help="draft less, or nothing, where that was measured to be faster (default: on)",
    )
    group.add_argument(
        f"{PREFIX}head-rows",
        type=int,
        metavar="N",
        help="rows of the vocabulary that the block chooses from, beside special tokens and the prompt's own; 0: all "
        f"(default: {defaults.head_rows})",
    )
    group.add_argument(
        f"{PREFIX}window",
        type=int,
        metavar="N",
        help="tokens at the end of a prompt that the block looks back to (default: all)",
    )


def may_use_block(args: argparse.Namespace) -> bool:
    """Whether drafts by the file's multi-token-prediction block are asked for; not so in subcommands without drafts."""
    return getattr(args, "spec_type", NONE) not in (NONE, NGRAM)


def window(args: argparse.Namespace) -> int | None:
    """Tokens that the block looks back to, as for `load`. Raises RequestError, naming the flag."""
    wanted = getattr(args, "spec_draft_window", None)
    if wanted is not None:
        check_number(f"{PREFIX}window", wanted, Integral, 1, MAX_CONTEXT)
    return wanted


def unused_flags(args: argparse.Namespace, has_block: bool = True) -> list[str]:
    """Those given that drafts of this type, of a model with or without a block, have no use for."""
    kind = getattr(args, "spec_type", None)
    unused = {NONE: ALL, NGRAM: OF_BLOCK, AUTO: () if has_block else ALL}.get(kind, ())
    return [flag(name) for name in unused if _given(args, name) is not None]


def drafting_config(args: argparse.Namespace) -> SpecDecodeConfig:
    """Raises RequestError, naming the flag, for the flags of drafts that are for loading the model too."""
    window(args)
    given = {name: value for name in SETTINGS if (value := _given(args, name)) is not None}
    try:
        return SpecDecodeConfig(args.spec_type, **given)
    except RequestError as error:
        name, problem = str(error).split(":", 1)
        raise RequestError(f"{flag(name)}:{problem}") from None


def flag(name: str) -> str:
    return f"{PREFIX}{name.replace('_', '-')}"


def _given(args: argparse.Namespace, name: str) -> object:
    return getattr(args, f"spec_draft_{name}")
