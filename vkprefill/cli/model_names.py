"""-hf, -hfd, -m NAME and -md auto: all end in paths, before anything else looks at -m and -md."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from rich.console import Console

from vkprefill.cli.common import notice, progress_bar
from vkprefill.errors import RequestError
from vkprefill.hub.at_hand import best_draft, built_in, named
from vkprefill.hub.fetch import fetch
from vkprefill.hub.names import HubName

AUTO = "auto"


def find_models(args: argparse.Namespace) -> None:
    """Put files in place of names. Raises HubError and RequestError for what cannot be had."""
    if args.hf_repo is not None:
        if args.model is not None:
            raise RequestError(f"-hf {args.hf_repo}: found -m {args.model} too, wanted one of them")
        args.model = fetched("-hf", args.hf_repo, args)
    elif args.model is not None and is_name(args.model):
        args.model = str(named("-m", args.model))
    if getattr(args, "hf_repo_draft", None) is not None:
        args.model_draft = [*(args.model_draft or ()), fetched("-hfd", args.hf_repo_draft, args)]
    if isinstance(getattr(args, "model_draft", None), list):
        args.model_draft = [draft_named(one, args) for one in args.model_draft]


def is_name(text: str) -> bool:
    """Whether it may be a listed name: it is no file, and neither begins nor ends as a file's path does."""
    as_path = text.startswith((".", "/", "~")) or text.lower().endswith(".gguf")
    return text != "" and text.isprintable() and not as_path and not os.path.exists(text)


def draft_named(text: str, args: argparse.Namespace) -> str:
    if text == AUTO:
        text = str(best_draft(built_in("built-in") if args.model is None else Path(args.model)))
        notice(f"-md auto: {text}")
        return text
    return str(named("-md", text)) if is_name(text) else text


def fetched(flag: str, text: str, args: argparse.Namespace) -> str:
    name = HubName.read(text)
    with progress_bar(Console(stderr=True)) as bar:
        tasks: dict[str, int] = {}

        def report(file: str, done: int, total: int) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done)

        path = fetch(name, offline=args.offline, progress=report, notice=notice)
    notice(f"{flag} {name}: {path}")
    return str(path)
